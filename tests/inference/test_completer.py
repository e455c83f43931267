"""A causal model continues texts: greedily or drawn with a seed, always within bounds."""

from collections import Counter

import numpy as np
import pytest

from clozeline.inference.completer import Completer, Decoding
from clozeline.inference.tokenization import TextTooLongError, TokenizedText
from clozeline.system.errors import DataError
from tests.make.opened import load_as
from tests.make.packages import MAX_LENGTH, SPECIALS, VOCABULARY, write_completer

CLS, SEP = VOCABULARY.index("[CLS]"), VOCABULARY.index("[SEP]")
DRAWN = Decoding(max_tokens=12, temperature=1.0, seed=3)


@pytest.fixture(scope="module")
def completer(tmp_path_factory: pytest.TempPathFactory) -> Completer:
    write_completer(folder := tmp_path_factory.mktemp("project") / "completer")
    return load_as(Completer, folder)


def probabilities(completer: Completer, ids: list[int]) -> np.ndarray:
    """The model's probability of each token of the vocabulary after `ids`."""
    (logits_V,) = completer.rows([TokenizedText(np.array(ids, dtype=np.int64), ())], "logits")
    exponent_V = np.exp(logits_V.astype(np.float64) - logits_V.max())
    total: np.ndarray = exponent_V / exponent_V.sum()
    return total


def test_greedy_decoding_picks_the_likeliest_token_at_each_step(completer: Completer) -> None:
    (found,) = completer.complete(["return the list"], Decoding(max_tokens=5))
    ids = [CLS, *(VOCABULARY.index(word) for word in ("return", "the", "list"))]
    assert found.num_read == len(ids)
    never = [VOCABULARY.index(one) for one in SPECIALS if one != "[SEP]"]
    for token_id, score in zip(found.tokens, found.scores, strict=True):
        likely_V = probabilities(completer, ids)
        assert score == pytest.approx(likely_V[token_id], rel=1e-4)
        likely_V[never] = 0
        assert token_id == likely_V.argmax()
        ids.append(token_id)


def test_a_completion_is_deterministic_and_independent_of_other_texts(completer: Completer) -> None:
    texts = ["return the list", "open", "the file of a", "open"]
    together = completer.complete(texts, DRAWN)
    assert together == completer.complete(texts, DRAWN)
    for text, one in zip(texts, together, strict=True):
        (alone,) = completer.complete([text], DRAWN)
        assert (alone.text, alone.tokens, alone.finish_reason) == (one.text, one.tokens, one.finish_reason)
    assert together[1] == together[3]


def test_another_seed_gives_another_answer(completer: Completer) -> None:
    found = {completer.complete(["return"], Decoding(12, 1.0, seed=seed))[0].tokens for seed in range(8)}
    assert len(found) > 4


def test_sampled_tokens_follow_the_probabilities_of_the_model(completer: Completer) -> None:
    seeds = 400
    drawn = Counter(
        completer.complete(["return the"], Decoding(1, 1.0, seed=seed))[0].tokens[:1] for seed in range(seeds)
    )
    likely_V = probabilities(completer, [CLS, VOCABULARY.index("return"), VOCABULARY.index("the")])
    likely_V[[VOCABULARY.index(one) for one in SPECIALS if one != "[SEP]"]] = 0
    likely_V /= likely_V.sum()
    for token_id in likely_V.argsort()[-3:]:
        expected = likely_V[token_id]
        key = () if token_id == SEP else (int(token_id),)
        assert abs(drawn[key] / seeds - expected) < 4 * np.sqrt(expected * (1 - expected) / seeds)


def test_each_token_is_drawn_independently(completer: Completer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Were it one draw for a whole text, two equally likely tokens would never alternate."""
    a, b = VOCABULARY.index("a"), VOCABULARY.index("b")
    monkeypatch.setattr(Completer, "answers", lambda self, asked: [[(a, 0.5), (b, 0.5)] for _ in asked.texts])
    (found,) = completer.complete(["return"], Decoding(40, temperature=1.0))
    assert 8 < found.tokens.count(a) < 32


def test_a_low_temperature_or_a_small_nucleus_gives_the_greedy_answer(completer: Completer) -> None:
    texts = ["return the list", "open the file", "a b c"]
    greedy = [one.tokens for one in completer.complete(texts, Decoding(6))]
    for narrow in (Decoding(6, temperature=1e-6, seed=5), Decoding(6, temperature=1.0, top_p=1e-9, seed=5)):
        assert [one.tokens for one in completer.complete(texts, narrow)] == greedy


def test_a_completion_respects_the_token_limit_and_the_length_of_the_model(completer: Completer) -> None:
    (few,) = completer.complete(["return the list"], Decoding(max_tokens=3))
    assert (len(few.tokens), few.finish_reason) == (3, "length")
    (many,) = completer.complete(["a " * (MAX_LENGTH - 4)], Decoding(max_tokens=1_000))
    assert many.num_read + len(many.tokens) <= MAX_LENGTH


def test_a_text_that_leaves_no_room_is_refused_or_cut_at_the_start(completer: Completer) -> None:
    long = "a " * MAX_LENGTH + "return the list"
    with pytest.raises(TextTooLongError, match="leaves no room for a new token"):
        completer.complete(["a", long])
    (cut,) = completer.complete([long], Decoding(max_tokens=4), truncate=True)
    assert cut.num_read + 4 == MAX_LENGTH
    (same,) = completer.complete(["a " * (MAX_LENGTH - 4 - 1 - 3) + "return the list"], Decoding(max_tokens=4))
    assert cut == same


def test_a_completion_ends_before_a_stop_string_even_inside_a_token(completer: Completer) -> None:
    (whole,) = completer.complete(["return the list"], Decoding(max_tokens=12))
    stop = whole.text[len(whole.text) // 2 :][:2]
    (cut,) = completer.complete(["return the list"], Decoding(max_tokens=12, stop=("never there", stop)))
    assert cut.text == whole.text[: whole.text.index(stop)]
    assert (cut.finish_reason, len(cut.tokens) <= len(whole.tokens)) == ("stop", True)


def test_a_completion_ends_at_the_end_token_of_the_model(completer: Completer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Completer, "answers", lambda self, asked: [[(SEP, 0.9), (7, 0.1)] for _ in asked.texts])
    (found,) = completer.complete(["return"])
    assert (found.text, found.tokens, found.finish_reason) == ("", (), "stop")


def test_special_tokens_are_never_generated(completer: Completer) -> None:
    never = {VOCABULARY.index(one) for one in SPECIALS}
    for seed in range(20):
        (found,) = completer.complete(["the"], Decoding(20, temperature=100.0, seed=seed))
        assert not never & set(found.tokens)


def test_a_completion_continues_the_text_even_within_a_word(completer: Completer) -> None:
    """`open` + `##ed` is one word."""
    (draft,) = completer.drafts(["open"], Decoding(max_tokens=1))
    completer.extend(draft, [(VOCABULARY.index("##ed"), 0.5)], Decoding(max_tokens=1))
    assert completer.completion(draft).text == "ed"
    (draft,) = completer.drafts(["open"], Decoding(max_tokens=1))
    completer.extend(draft, [(VOCABULARY.index("file"), 0.5)], Decoding(max_tokens=1))
    assert completer.completion(draft).text == " file"


def test_the_tokens_of_later_steps_are_counted_before_the_first(completer: Completer) -> None:
    (draft,) = completer.drafts(["return the list"], Decoding(max_tokens=4))
    assert draft.later_tokens == 5 + 6 + 7
    assert completer.drafts(["a"], Decoding(max_tokens=1))[0].later_tokens == 0


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"top_p": 0.0}, "top_p"),
        ({"seed": -1}, "seed"),
        ({"seed": 2**63}, "seed"),
        ({"stop": ("a", "")}, "stop"),
    ],
)
def test_an_out_of_range_setting_is_refused_by_name(given: dict[str, object], name: str) -> None:
    with pytest.raises(DataError, match=f"`{name}` is out of bounds"):
        Decoding(**given)


def test_a_causal_model_gives_unit_embeddings(completer: Completer) -> None:
    embeddings_TH = completer.embed(["return the list", "open"])
    assert np.linalg.norm(embeddings_TH, axis=1) == pytest.approx(1)
