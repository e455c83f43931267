"""Claim: words that are encoded together have the ids that each has alone."""

from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers

from clozeline.records.words.bytes import word_hashes
from clozeline.tokenizing import encoding
from clozeline.tokenizing import encoding as word_cache
from clozeline.tokenizing.encoding import WordCache, encode_each, encode_joined
from tests.make.texts import ALGORITHMS, learned_tokenizer, odd_text

ODD = "=\u0338?{`aéb東E\u0301\x00\x1f\x85\u200b▁'ﷺ½¨,.(0१\ufffd\U0001f600İΣς[]"
words = st.lists(st.text(st.sampled_from(ODD + "abab"), max_size=8), max_size=9)


@pytest.fixture(scope="module", params=["BertNormalizer", "NFKC", "NFD and StripAccents"])
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    pieces = ["[UNK]", *sorted({*ODD, "a", "b", "e", "ab", "##a", "##b", "##ab", "1", "2", "⁄"})]
    tokenizer = Tokenizer(models.WordPiece({piece: id_ for id_, piece in enumerate(pieces)}, unk_token="[UNK]"))
    tokenizer.normalizer = {
        "BertNormalizer": normalizers.BertNormalizer(),
        "NFKC": normalizers.NFKC(),
        "NFD and StripAccents": normalizers.Sequence([normalizers.NFD(), normalizers.StripAccents()]),
    }[request.param]
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return tokenizer


@given(words=words, at_a_time=st.integers(1, 4))
@settings(max_examples=400, deadline=None)
def test_words_encoded_together_have_the_ids_of_single_words(
    tokenizer: Tokenizer, words: list[str], at_a_time: int
) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(encoding, "_JOINED_WORDS", at_a_time)
        patched.setattr(encoding, "_WORDS_AT_A_TIME", 2 * at_a_time)
        joined, each = encode_joined(tokenizer, words), encode_each(tokenizer, words)
    assert joined.tokens_N.tolist() == each.tokens_N.tolist()
    assert joined.lengths_D.tolist() == each.lengths_D.tolist()


@pytest.fixture(scope="module")
def learned(texts: list[str]) -> dict[str, Tokenizer]:
    def tokenizer(algorithm: str) -> Tokenizer:
        tokenizer = learned_tokenizer(algorithm, texts)
        tokenizer.encode_special_tokens = True
        return tokenizer

    return {algorithm: tokenizer(algorithm) for algorithm in ALGORITHMS}


def assert_same_as_whole_texts(tokenizer: Tokenizer, texts: Sequence[str], cache: WordCache | None = None) -> None:
    encoded = (WordCache.create(tokenizer) if cache is None else cache).encode(pa.array(texts, pa.string()))
    expected = [encoding.ids for encoding in tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)]
    assert encoded.lengths_D.tolist() == [len(ids) for ids in expected]
    assert encoded.tokens_N.tolist() == [id_ for ids in expected for id_ in ids]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@given(texts=st.lists(odd_text, max_size=6))
@settings(max_examples=300, deadline=None)
def test_unusual_texts_get_the_ids_of_uncached_encoding(
    learned: dict[str, Tokenizer], algorithm: str, texts: list[str]
) -> None:
    assert_same_as_whole_texts(learned[algorithm], texts)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_words_seen_in_an_earlier_batch_keep_their_ids(
    learned: dict[str, Tokenizer], algorithm: str, texts: list[str]
) -> None:
    cache = WordCache.create(learned[algorithm])
    for start in range(0, len(texts), 50):
        assert_same_as_whole_texts(learned[algorithm], texts[start : start + 50], cache)


def test_a_full_cache_is_emptied_and_changes_nothing(
    learned: dict[str, Tokenizer], texts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(word_cache, "_MOST_WORDS", 20)
    cache = WordCache.create(learned["wordpiece"])
    for start in range(0, len(texts), 10):
        assert_same_as_whole_texts(learned["wordpiece"], texts[start : start + 10], cache)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_each_word_is_encoded_once(learned: dict[str, Tokenizer], algorithm: str) -> None:
    cache = WordCache.create(learned[algorithm])
    cache.encode(pa.array(["kato mire", "mire kato mire kato"]))
    assert len(cache) <= 4


def _needs_its_neighbours(change: Callable[[Tokenizer], None]) -> Tokenizer:
    pieces = {"[UNK]": 0, "a": 1, "b": 2, "a b": 3, " ": 4, "##b": 5, "##a": 6, "▁a": 7, "▁": 8, "ab": 9}
    tokenizer = Tokenizer(models.WordPiece(pieces, unk_token="[UNK]"))
    change(tokenizer)
    return tokenizer


def _no_pre_tokenizer(tokenizer: Tokenizer) -> None:
    pass


def _word_with_a_space(tokenizer: Tokenizer) -> None:
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.add_tokens([AddedToken("a b", special=False, normalized=False)])


def _first_word_is_different(tokenizer: Tokenizer) -> None:
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")


def _spaces_are_deleted(tokenizer: Tokenizer) -> None:
    tokenizer.normalizer = normalizers.Replace(" ", "")
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()


@pytest.mark.parametrize(
    "change", [_no_pre_tokenizer, _word_with_a_space, _first_word_is_different, _spaces_are_deleted]
)
def test_a_tokenizer_with_dependent_words_encodes_whole_texts(
    change: Callable[[Tokenizer], None],
) -> None:
    assert_same_as_whole_texts(_needs_its_neighbours(change), ["a b", "ab a", "b a b", " a", ""])


def test_an_empty_column_gives_no_tokens(learned: dict[str, Tokenizer]) -> None:
    encoded = WordCache.create(learned["bpe"]).encode(pa.array([], pa.string()))
    assert (len(encoded.tokens_N), len(encoded.lengths_D)) == (0, 0)


def test_words_with_equal_hashes_keep_their_own_ids(
    learned: dict[str, Tokenizer], texts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(word_cache, "word_hashes", lambda words: word_hashes(words) % np.uint64(7))
    cache = WordCache.create(learned["wordpiece"])
    for start in range(0, len(texts), 50):
        assert_same_as_whole_texts(learned["wordpiece"], texts[start : start + 50], cache)
