"""Tokenization never truncates silently, and keeps positions in the text."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, processors

from clozeline.inference import tokenization
from clozeline.inference.tokenization import KnownWords, NotUnicodeError, TextTokenizer, TextTooLongError
from clozeline.records.package import FILES, read_manifest
from tests.make.texts import ALGORITHMS, ODD, learned_tokenizer, odd_text

CLS, SEP, MASK = 2, 3, 4


@pytest.fixture(scope="module")
def tokenizer(encoder_package: Path) -> TextTokenizer:
    return TextTokenizer(encoder_package / FILES.tokenizer, max_length=8, mask_id=MASK)


def test_the_mask_id_of_this_test_equals_that_of_the_package(encoder_package: Path) -> None:
    assert read_manifest(encoder_package).special_tokens.mask_id == MASK


def test_a_text_is_framed_by_special_tokens(tokenizer: TextTokenizer) -> None:
    (text,) = tokenizer.tokenize(["the model"], truncate=False)
    assert text.ids_L[0] == CLS
    assert text.ids_L[-1] == SEP


def test_a_text_that_is_too_long_is_refused_with_its_number_and_length(tokenizer: TextTokenizer) -> None:
    long = "the model " * 50
    with pytest.raises(TextTooLongError, match="text 1 is too long") as refused:
        tokenizer.tokenize(["the model", long], truncate=False)
    assert f"{tokenizer.count([long])[0]} tokens: 'the" in str(refused.value)


def test_a_pair_that_is_too_long_names_the_longer_text(tokenizer: TextTokenizer) -> None:
    with pytest.raises(TextTooLongError, match=r"54 tokens \(the two texts have 50 and 1\): 'the the"):
        tokenizer.tokenize([("the " * 50, "the")], truncate=False)


def test_a_cut_text_still_ends_with_its_special_token(tokenizer: TextTokenizer) -> None:
    short, cut = tokenizer.tokenize(["the model", "the model " * 50], truncate=True)
    assert len(cut) == 8
    assert cut.ids_L[-1] == SEP
    assert len(short) < 8


def test_counting_works_for_texts_of_any_length(tokenizer: TextTokenizer) -> None:
    assert tokenizer.count(["the", "the " * 50]) == [3, 52]


def test_mask_positions_match_the_masks_of_the_text(tokenizer: TextTokenizer) -> None:
    (text,) = tokenizer.tokenize(["[MASK] é [MASK]"], truncate=False)
    assert text.mask_spans == ((0, 6), (9, 15))


def test_mask_spans_are_the_same_with_cached_words(tokenizer: TextTokenizer) -> None:
    texts = ["a[MASK]b é [MASK] [UNK]", "[MASK]", "[MASK", "[[MASK]]"]
    spans = [((1, 7), (11, 17)), ((0, 6),), (), ((1, 7),)]
    for _ in range(2):
        read = tokenizer.tokenize(texts, truncate=False)
        assert [text.mask_spans for text in read] == spans


def test_every_spelling_of_a_mask_becomes_one_mask_token(encoder_package: Path, tmp_path: Path) -> None:
    saved = (encoder_package / FILES.tokenizer).read_text(encoding="utf-8").replace("[MASK]", "mask")
    (tmp_path / "tokenizer.json").write_text(saved, encoding="utf-8")
    tokenizer = TextTokenizer(tmp_path / "tokenizer.json", max_length=8, mask_id=MASK)
    read = tokenizer.tokenize(["a mask", "a MASK", "a MASK"], truncate=False)
    assert [text.mask_spans for text in read] == [((2, 6),)] * 3


def test_cached_and_uncached_texts_keep_their_order(tokenizer: TextTokenizer) -> None:
    tokenizer.tokenize(["the list"], truncate=False)
    given = ["list", ("the", "list"), "[MASK]", "the list", "a b c d e f g h i", "open"]
    alone = [tokenizer.tokenize([one], truncate=True)[0].ids_L.tolist() for one in given]
    assert [text.ids_L.tolist() for text in tokenizer.tokenize(given, truncate=True)] == alone
    assert len({tuple(ids) for ids in alone}) == len(given)


@pytest.mark.parametrize(("token", "filled"), [("the", "Is the Model"), ("##s", "Iss Model"), ("##", "Is ## Model")])
def test_a_token_replaces_the_mask_and_a_word_piece_joins_the_word_before(
    tokenizer: TextTokenizer, token: str, filled: str
) -> None:
    assert tokenizer.with_token("Is [MASK] Model", (3, 9), token) == filled


def test_the_text_of_a_token_says_whether_it_continues_a_word(tokenizer: TextTokenizer) -> None:
    (piece,) = tokenizer.ids_of("##s")
    (the,) = tokenizer.ids_of("the")
    assert tokenizer.token_text(piece) == "##s"
    assert tokenizer.token_text(the) == "the"


def test_a_lone_surrogate_is_refused_by_the_number_of_its_text(tokenizer: TextTokenizer) -> None:
    with pytest.raises(NotUnicodeError, match="text 1 is not valid Unicode"):
        tokenizer.tokenize(["fine", "not \ud800 fine"], truncate=False)


def test_a_truncation_saved_with_the_tokenizer_is_ignored(encoder_package: Path, tmp_path: Path) -> None:
    from tokenizers import Tokenizer

    saved = Tokenizer.from_file(str(encoder_package / FILES.tokenizer))
    saved.enable_truncation(4)
    saved.enable_padding(length=4)
    saved.save(str(tmp_path / "tokenizer.json"))
    tokenizer = TextTokenizer(tmp_path / "tokenizer.json", max_length=64, mask_id=MASK)
    assert tokenizer.count(["the " * 20, "the"]) == [22, 3]


WORDS = ["kato", "mire", "sulon", "Ber", "géshi", "votri", "ple", "kaka", "x1", "…", "don't", "a-b"]
SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


@pytest.fixture(scope="module")
def tokenizers() -> dict[str, Tokenizer]:
    texts = [" ".join(WORDS[start:] + WORDS[:start]) for start in range(len(WORDS))] * 3
    letters = [chr(code) for code in chain(range(0x21, 0x7F), range(0xA1, 0x220))]
    texts += [
        " ".join(letters),
        "".join(letters),
        " ".join(first + second for first in "abkm" for second in letters),
    ] * 2
    return {algorithm: learned_tokenizer(algorithm, texts) for algorithm in ALGORITHMS}


def known_of(tokenizer: Tokenizer) -> KnownWords:
    known = KnownWords.of(tokenizer)
    assert known is not None
    return known


def assert_same(known: KnownWords, tokenizer: Tokenizer, texts: Sequence[str]) -> int:
    """Assert that ids from known words are the tokenizer's; return the number of texts with unknown words."""
    found = [known.ids(text) for text in texts]
    expected = [tokenizer.encode(text).ids for text in texts]
    assert [ids for ids in found if ids is not None] == [
        ids for ids, given in zip(expected, found, strict=True) if given is not None
    ]
    return found.count(None)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@given(texts=st.lists(odd_text, max_size=6))
@settings(max_examples=300, deadline=None)
def test_unusual_texts_get_the_ids_of_the_tokenizer(
    tokenizers: dict[str, Tokenizer], algorithm: str, texts: list[str]
) -> None:
    known = known_of(tokenizers[algorithm])
    assert_same(known, tokenizers[algorithm], texts)
    assert_same(known, tokenizers[algorithm], texts)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_text_of_known_words_is_not_encoded_again(tokenizers: dict[str, Tokenizer], algorithm: str) -> None:
    tokenizer = tokenizers[algorithm]
    known = known_of(tokenizer)
    first, second = (" ".join(["", *words]) for words in (WORDS, WORDS[::-1]))
    assert assert_same(known, tokenizer, [first]) == 0
    num_words = known.num_words
    assert num_words >= len(WORDS)
    assert assert_same(known, tokenizer, [second]) == 0
    assert known.num_words == num_words


def test_a_text_with_many_new_words_is_learned_over_several_calls(tokenizers: dict[str, Tokenizer]) -> None:
    tokenizer = tokenizers["wordpiece"]
    known = known_of(tokenizer)
    text = " ".join(f"{first}{second}" for first in WORDS[:5] for second in WORDS[:9])
    asked = [assert_same(known, tokenizer, [text]) for _ in range(5)]
    assert asked == [1, 1, 0, 0, 0]


@pytest.mark.parametrize("special", SPECIALS)
def test_a_special_token_is_cached_as_a_word_if_words_end_before_it(
    tokenizers: dict[str, Tokenizer], special: str
) -> None:
    known = known_of(tokenizers["wordpiece"])
    texts = [f"kato{special}mire", f"kato {special.lower()} mire", f"[{special}]", f"{special}{special[1:]}"]
    assert assert_same(known, tokenizers["wordpiece"], texts) == 0


@pytest.mark.parametrize("algorithm", ["bpe", "unigram"])
@pytest.mark.parametrize("special", SPECIALS)
def test_a_text_with_a_special_token_inside_a_word_is_left_to_the_tokenizer(
    tokenizers: dict[str, Tokenizer], special: str, algorithm: str
) -> None:
    assert known_of(tokenizers[algorithm]).ids(f"kato{special}mire") is None


@pytest.mark.parametrize("takes", ["lstrip", "rstrip", "single_word"])
def test_a_text_with_a_special_token_that_absorbs_neighbours_is_left_to_the_tokenizer(
    tokenizers: dict[str, Tokenizer], takes: str
) -> None:
    tokenizer = Tokenizer.from_str(tokenizers["wordpiece"].to_str())
    tokenizer.add_special_tokens([AddedToken("<x>", normalized=False, **{takes: True})])
    assert known_of(tokenizer).ids("kato <x> mire") is None


def test_the_longest_of_overlapping_special_tokens_wins(tokenizers: dict[str, Tokenizer]) -> None:
    tokenizer = Tokenizer.from_str(tokenizers["wordpiece"].to_str())
    tokenizer.add_special_tokens([AddedToken(f"[MASK]{more}", normalized=False) for more in ("", "]", "]]")])
    texts = [f"kato [MASK]{more}" for more in ("", "]", "]]", "]]]", "a]")]
    assert assert_same(known_of(tokenizer), tokenizer, texts) == 0


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_an_evicted_word_is_learned_again(
    tokenizers: dict[str, Tokenizer], algorithm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokenization, "_MOST_WORDS", 5)
    known = known_of(tokenizers[algorithm])
    texts = [f" {one} {other}" for one in WORDS for other in WORDS]
    for start in range(0, len(texts), 7):
        assert assert_same(known, tokenizers[algorithm], texts[start : start + 7]) == 0
        assert known.num_words <= 2 * (5 + 2)


def test_words_of_the_earlier_cache_generation_do_not_count_as_new(
    tokenizers: dict[str, Tokenizer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokenization, "_MOST_WORDS", 4)
    monkeypatch.setattr(tokenization, "_MOST_NEW_WORDS", 1)
    known = known_of(tokenizers["wordpiece"])
    for word in ("kato", "mire", "sulon", "votri", "ple"):
        assert known.ids(word) is not None
    assert assert_same(known, tokenizers["wordpiece"], ["kato mire sulon votri"]) == 0


@pytest.mark.parametrize("word", ["q" * 101, "x9z8w7v6u5t4"])
def test_a_word_with_many_characters_or_ids_is_not_cached(tokenizers: dict[str, Tokenizer], word: str) -> None:
    known = known_of(tokenizers["wordpiece"])
    assert assert_same(known, tokenizers["wordpiece"], [f"kato {word}", word]) == 0
    assert known.num_words == 1


def test_concurrent_threads_get_correct_ids(tokenizers: dict[str, Tokenizer], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenization, "_MOST_WORDS", 3)
    tokenizer = tokenizers["wordpiece"]
    known = known_of(tokenizer)
    texts = [f"{one} {other}" for one in WORDS for other in WORDS] * 20
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(known.ids, texts))
    assert found == [tokenizer.encode(text).ids for text in texts]


def _normalized_special(tokenizer: Tokenizer) -> None:
    tokenizer.add_special_tokens([AddedToken("kato", normalized=True)])


def _needs_its_neighbours(tokenizer: Tokenizer) -> None:
    tokenizer.add_tokens(["kato mire"])


@pytest.mark.parametrize("change", [_normalized_special, _needs_its_neighbours])
def test_some_tokenizers_get_no_cache(tokenizers: dict[str, Tokenizer], change: object) -> None:
    tokenizer = Tokenizer.from_str(tokenizers["wordpiece"].to_str())
    assert callable(change)
    change(tokenizer)
    assert KnownWords.of(tokenizer) is None


def test_a_tokenizer_without_special_tokens_is_supported(tokenizers: dict[str, Tokenizer]) -> None:
    tokenizer = Tokenizer.from_str(tokenizers["bpe"].to_str())
    tokenizer.post_processor = processors.ByteLevel()
    assert (
        assert_same(known_of(tokenizer), tokenizer, ["", " kato mire", ODD.replace("\x1c", "").replace("\x1f", "")])
        == 0
    )
