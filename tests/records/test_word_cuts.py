"""Tokenizers that encode a word alone as in a text are recognized. The rooms that cut words test the ids."""

from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers

from clozeline.records.word_cuts import cut_of

_BERT, _LOWERCASE = pre_tokenizers.BertPreTokenizer(), normalizers.BertNormalizer()
_BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False)
_OWN_UNIGRAM = pre_tokenizers.Sequence([pre_tokenizers.Metaspace(), pre_tokenizers.Punctuation("isolated")])
_ONE_BLANK = normalizers.Replace(Regex(r"\s+"), " ")


def _tokenizer(pre_tokenizer: object, normalizer: object) -> Tokenizer:
    tokenizer = Tokenizer(models.WordPiece({"[UNK]": 0, "a": 1}, unk_token="[UNK]"))
    for name, part in (("pre_tokenizer", pre_tokenizer), ("normalizer", normalizer)):
        if part is not None:
            setattr(tokenizer, name, part)
    return tokenizer


def test_tokenizers_with_independent_words_have_a_word_cut() -> None:
    for pre_tokenizer, normalizer, cut in (
        (_BERT, _LOWERCASE, "at punctuation"),
        (_BERT, normalizers.Sequence([normalizers.NFC(), _LOWERCASE]), "at blanks"),
        (_BYTES, None, "before blanks"),
        (_OWN_UNIGRAM, normalizers.Sequence([_ONE_BLANK, normalizers.Strip()]), "at blanks unless marked"),
        # The words of these depend on others.
        (None, None, None),
        (_BERT, normalizers.Replace(" ", ""), None),
        (_BYTES, normalizers.NFKC(), None),
        (pre_tokenizers.ByteLevel(add_prefix_space=True), None, None),
        (pre_tokenizers.Metaspace(prepend_scheme="first"), None, None),
        (_OWN_UNIGRAM, None, None),
        (_OWN_UNIGRAM, normalizers.Sequence([normalizers.Replace("a", " "), normalizers.Strip()]), None),
    ):
        assert cut_of(_tokenizer(pre_tokenizer, normalizer)) == cut


def test_a_tokenizer_with_an_added_word_containing_a_space_has_no_word_cut() -> None:
    tokenizer = _tokenizer(_BERT, None)
    tokenizer.add_tokens([AddedToken("a b", special=False, normalized=False)])
    assert cut_of(tokenizer) is None
