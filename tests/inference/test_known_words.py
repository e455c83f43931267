"""Claim: ids from known words equal the tokenizer's ids of the whole text, whatever texts came before."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, processors

from clozeline.inference import tokenization
from clozeline.inference.tokenization import KnownWords
from tests.make.texts import ALGORITHMS, ODD, learned_tokenizer, odd_text

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
