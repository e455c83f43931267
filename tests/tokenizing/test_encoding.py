"""Claim: words that are encoded together have the ids that each has alone."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers

from clozeline.records.words.bytes import word_hashes
from clozeline.tokenizing import encoding
from clozeline.tokenizing.encoding import WordCache
from tests.make.texts import ALGORITHMS, learned_tokenizer, odd_text

NORMALIZERS = {
    "NFKC": normalizers.NFKC(),
    "NFD and StripAccents": normalizers.Sequence([normalizers.NFD(), normalizers.StripAccents()]),
}


@pytest.fixture(scope="module")
def learned(texts: list[str]) -> dict[str, Tokenizer]:
    """A tokenizer of each algorithm, and the first one with other normalizers."""
    tokenizers = {algorithm: learned_tokenizer(algorithm, texts) for algorithm in ALGORITHMS}
    for name, normalizer in NORMALIZERS.items():
        tokenizers[name] = Tokenizer.from_str(tokenizers[ALGORITHMS[0]].to_str())
        tokenizers[name].normalizer = normalizer
    for tokenizer in tokenizers.values():
        tokenizer.encode_special_tokens = True
    return tokenizers


def assert_same_as_whole_texts(tokenizer: Tokenizer, texts: Sequence[str], cache: WordCache | None = None) -> None:
    encoded = (WordCache.create(tokenizer) if cache is None else cache).encode(pa.array(texts, pa.string()))
    expected = [encoding.ids for encoding in tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)]
    assert encoded.lengths_D.tolist() == [len(ids) for ids in expected]
    assert encoded.tokens_N.tolist() == [id_ for ids in expected for id_ in ids]


@pytest.mark.parametrize("name", [*ALGORITHMS, *NORMALIZERS])
@given(texts=st.lists(odd_text, max_size=6), at_a_time=st.integers(1, 4))
@settings(max_examples=100, deadline=None)
def test_unusual_texts_get_the_ids_of_uncached_encoding(learned, name: str, texts, at_a_time: int) -> None:
    """However many words are encoded together."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(encoding, "_JOINED_WORDS", at_a_time)
        patched.setattr(encoding, "_WORDS_AT_A_TIME", 2 * at_a_time)
        assert_same_as_whole_texts(learned[name], texts)


@pytest.mark.parametrize(
    ("algorithm", "changes"),
    [
        *((algorithm, {}) for algorithm in ALGORITHMS),
        ("wordpiece", {"_MOST_WORDS": 20}),  # a full cache is emptied
        ("wordpiece", {"word_hashes": lambda words: word_hashes(words) % np.uint64(7)}),  # words with equal hashes
    ],
)
def test_words_seen_in_an_earlier_batch_keep_their_ids(learned, texts, monkeypatch, algorithm, changes) -> None:
    for name, value in changes.items():
        monkeypatch.setattr(encoding, name, value)
    cache = WordCache.create(learned[algorithm])
    for start in range(0, len(texts), 20):
        assert_same_as_whole_texts(learned[algorithm], texts[start : start + 20], cache)
    assert_same_as_whole_texts(learned[algorithm], [], cache)


BERT, METASPACE = pre_tokenizers.BertPreTokenizer(), pre_tokenizers.Metaspace(prepend_scheme="first")
WITH_A_SPACE = AddedToken("a b", special=False, normalized=False)


@pytest.mark.parametrize(
    ("pre_tokenizer", "normalizer", "added"),
    [
        (None, None, []),
        (BERT, None, [WITH_A_SPACE]),
        (METASPACE, None, []),  # the first word is different
        (BERT, normalizers.Replace(" ", ""), []),
    ],
    ids=["no pre-tokenizer", "a word with a space", "the first word is different", "spaces are deleted"],
)
def test_a_tokenizer_with_dependent_words_encodes_whole_texts(pre_tokenizer, normalizer, added) -> None:
    pieces = ["[UNK]", "a", "b", "a b", " ", "##b", "##a", "▁a", "▁", "ab"]
    tokenizer = Tokenizer(models.WordPiece({piece: id_ for id_, piece in enumerate(pieces)}, unk_token="[UNK]"))
    if pre_tokenizer:
        tokenizer.pre_tokenizer = pre_tokenizer
    if normalizer:
        tokenizer.normalizer = normalizer
    tokenizer.add_tokens(added)
    assert_same_as_whole_texts(tokenizer, ["a b", "ab a", "b a b", " a", ""])
