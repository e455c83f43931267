"""Claim: words that are encoded together have the ids that each has alone."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

from clozeline.tokenizing import encoding
from clozeline.tokenizing.encoding import encode_each, encode_joined

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
