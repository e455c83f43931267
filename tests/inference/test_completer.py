"""A causal model continues texts: greedily or drawn with a seed, always within bounds."""

from collections import Counter

import numpy as np
import pytest

from clozeline.inference.completer import Completer, Completion, Decoding
from clozeline.inference.tokenization import TextTooLongError, TokenizedText
from clozeline.system.errors import DataError
from tests.make.opened import load_as
from tests.make.packages import MAX_LENGTH, SPECIALS, VOCABULARY, write_completer

ID = {token: place for place, token in enumerate(VOCABULARY)}
CLS, SEP = ID["[CLS]"], ID["[SEP]"]
NEVER = [ID[token] for token in SPECIALS if token != "[SEP]"]


@pytest.fixture(scope="module")
def completer(tmp_path_factory: pytest.TempPathFactory) -> Completer:
    write_completer(folder := tmp_path_factory.mktemp("project") / "completer")
    return load_as(Completer, folder)


def likely(completer: Completer, ids: list[int]) -> np.ndarray:
    """The model's probability of each token of the vocabulary after `ids`."""
    (logits_V,) = completer.rows([TokenizedText(np.array(ids, dtype=np.int64), ())], "logits")
    exponent_V = np.exp(logits_V.astype(np.float64) - logits_V.max())
    total: np.ndarray = exponent_V / exponent_V.sum()
    return total


def told(completer: Completer, text: str, decoding: Decoding) -> Completion:
    (found,) = completer.complete([text], decoding)
    return found


def test_greedy_decoding_picks_the_likeliest_token_at_each_step(completer: Completer) -> None:
    found = told(completer, "return the list", Decoding(max_tokens=5))
    ids = [CLS, *(ID[word] for word in ("return", "the", "list"))]
    assert found.num_read == len(ids)
    for token_id, score in zip(found.tokens, found.scores, strict=True):
        likely_V = likely(completer, ids)
        assert score == pytest.approx(likely_V[token_id], rel=1e-4)
        likely_V[NEVER] = 0
        assert token_id == likely_V.argmax()
        ids.append(token_id)


def test_a_completion_depends_on_its_seed_and_not_on_other_texts(completer: Completer) -> None:
    texts, drawn = ["return the list", "open", "the file of a", "open"], Decoding(12, 1.0, seed=3)
    together = completer.complete(texts, drawn)
    assert together == completer.complete(texts, drawn)
    for text, one in zip(texts, together, strict=True):
        alone = told(completer, text, drawn)
        assert (alone.text, alone.tokens, alone.finish_reason) == (one.text, one.tokens, one.finish_reason)
    assert together[1] == together[3]
    assert len({told(completer, "return", Decoding(12, 1.0, seed=seed)).tokens for seed in range(8)}) > 4


def test_sampled_tokens_follow_the_probabilities_of_the_model(completer: Completer) -> None:
    seeds = 400
    drawn = Counter(told(completer, "return the", Decoding(1, 1.0, seed=seed)).tokens[:1] for seed in range(seeds))
    likely_V = likely(completer, [CLS, ID["return"], ID["the"]])
    likely_V[NEVER] = 0
    likely_V /= likely_V.sum()
    for token_id in likely_V.argsort()[-3:].tolist():
        expected = likely_V[token_id]
        share = drawn[() if token_id == SEP else (token_id,)] / seeds
        assert abs(share - expected) < 4 * np.sqrt(expected * (1 - expected) / seeds)


def test_a_low_temperature_or_a_small_nucleus_gives_the_greedy_answer(completer: Completer) -> None:
    for narrow in (Decoding(6, 1e-6, seed=5), Decoding(6, 1.0, top_p=1e-9, seed=5)):
        assert told(completer, "open the file", narrow).tokens == told(completer, "open the file", Decoding(6)).tokens


def test_a_completion_respects_the_token_limit_and_the_length_of_the_model(completer: Completer) -> None:
    few = told(completer, "return the list", Decoding(max_tokens=3))
    assert (len(few.tokens), few.finish_reason) == (3, "length")
    many = told(completer, "a " * (MAX_LENGTH - 4), Decoding(max_tokens=1_000))
    assert many.num_read + len(many.tokens) <= MAX_LENGTH


def test_a_text_that_leaves_no_room_is_refused_or_cut_at_the_start(completer: Completer) -> None:
    long, four = "a " * MAX_LENGTH + "return the list", Decoding(max_tokens=4)
    with pytest.raises(TextTooLongError, match="leaves no room for a new token"):
        completer.complete(["a", long])
    (cut,) = completer.complete([long], four, truncate=True)
    assert cut.num_read + 4 == MAX_LENGTH
    assert cut == told(completer, "a " * (MAX_LENGTH - 4 - 1 - 3) + "return the list", four)


def test_a_completion_ends_before_a_stop_string_even_inside_a_token(completer: Completer) -> None:
    whole = told(completer, "return the list", Decoding(max_tokens=12))
    stop = whole.text[len(whole.text) // 2 :][:2]
    cut = told(completer, "return the list", Decoding(max_tokens=12, stop=("never there", stop)))
    assert cut.text == whole.text[: whole.text.index(stop)]
    assert (cut.finish_reason, len(cut.tokens) <= len(whole.tokens)) == ("stop", True)


def test_special_tokens_are_never_generated_and_the_end_token_of_the_model_ends_a_completion(
    completer: Completer, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = [told(completer, "the", Decoding(20, temperature=100.0, seed=seed)) for seed in range(20)]
    assert not any({SEP, *NEVER} & set(found.tokens) for found in drawn)
    assert {found.finish_reason for found in drawn} == {"length", "stop"}, "the end token is drawn too"
    monkeypatch.setattr(Completer, "answers", lambda self, asked: [[(SEP, 0.9), (7, 0.1)] for _ in asked.texts])
    found = told(completer, "return", Decoding())
    assert (found.text, found.tokens, found.finish_reason) == ("", (), "stop")
    both = [(ID["a"], 0.5), (ID["b"], 0.5)]
    monkeypatch.setattr(Completer, "answers", lambda self, asked: [both for _ in asked.texts])
    assert 8 < told(completer, "return", Decoding(40, temperature=1.0)).tokens.count(ID["a"]) < 32, "one draw each"


@pytest.mark.parametrize(("token", "text"), [("##ed", "ed"), ("file", " file")])
def test_a_completion_continues_the_text_even_within_a_word(completer: Completer, token: str, text: str) -> None:
    (draft,) = completer.drafts(["open"], Decoding(max_tokens=1))
    completer.extend(draft, [(ID[token], 0.5)], Decoding(max_tokens=1))
    assert completer.completion(draft).text == text
    later = [completer.drafts(["return the list"], Decoding(max_tokens=most))[0].later_tokens for most in (4, 1)]
    assert later == [5 + 6 + 7, 0], "the tokens of later steps are counted before the first"


@pytest.mark.parametrize(
    ("name", "value"),
    [("max_tokens", 0), ("temperature", float("nan")), ("top_p", 0.0), ("seed", 2**63), ("stop", ("a", ""))],
)
def test_an_out_of_range_setting_is_refused_by_name(name: str, value: object) -> None:
    with pytest.raises(DataError, match=f"`{name}` is out of bounds"):
        Decoding(**{name: value})
