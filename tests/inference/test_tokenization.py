"""Tokenization never truncates silently, and keeps positions in the text."""

from pathlib import Path

import pytest

from clozeline.inference.tokenization import NotUnicodeError, TextTokenizer, TextTooLongError
from clozeline.records.package import FILES, read_manifest

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
