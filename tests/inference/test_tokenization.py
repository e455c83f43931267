"""Tokenization never truncates silently, and keeps positions in the text."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain, permutations
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer

from clozeline.inference import tokenization
from clozeline.inference.tokenization import KnownWords, NotUnicodeError, TextTokenizer, TextTooLongError
from clozeline.records.package import FILES
from tests.make.packages import write_encoder
from tests.make.texts import ALGORITHMS, learned_tokenizer, odd_text

CLS, SEP, MASK = 2, 3, 4
LONG = "the list " * 50


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    write_encoder(folder := tmp_path_factory.mktemp("project") / "encoder")
    return folder


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> TextTokenizer:
    return TextTokenizer(folder / FILES.tokenizer, max_length=8, mask_id=MASK)


def test_a_text_is_framed_by_special_tokens_and_keeps_them_if_it_is_cut(tokenizer: TextTokenizer) -> None:
    short, cut = tokenizer.tokenize(["the list", LONG], truncate=True)
    assert (len(short), len(cut)) == (4, 8)
    assert all((text.ids_L[0], text.ids_L[-1]) == (CLS, SEP) for text in (short, cut))
    assert tokenizer.count(["the", "the " * 50]) == [3, 52]


@pytest.mark.parametrize(
    ("text", "kind", "told"),
    [
        (LONG, TextTooLongError, "text 1 is too long.* 102 tokens: 'the list"),
        (("the " * 50, "the"), TextTooLongError, r"54 tokens \(the two texts have 50 and 1\): 'the the"),
        ("not \ud800 fine", NotUnicodeError, "text 1 is not valid Unicode"),
    ],
)
def test_a_text_that_cannot_be_read_is_refused_with_its_number(
    tokenizer: TextTokenizer, text: str | tuple[str, str], kind: type[Exception], told: str
) -> None:
    with pytest.raises(kind, match=f"(?s){told}"):
        tokenizer.tokenize(["the", text], truncate=False)


def test_spans_of_masks_are_those_of_the_text_also_with_cached_words(tokenizer: TextTokenizer) -> None:
    spans = {"[MASK] é [MASK]": ((0, 6), (9, 15)), "a[MASK]b [UNK]": ((1, 7),), "[MASK": (), "[[MASK]]": ((1, 7),)}
    for _ in range(2):
        assert [text.mask_spans for text in tokenizer.tokenize([*spans], truncate=False)] == [*spans.values()]


def test_every_spelling_of_a_mask_becomes_one_mask_token(folder: Path, tmp_path: Path) -> None:
    saved = (folder / FILES.tokenizer).read_text(encoding="utf-8").replace("[MASK]", "mask")
    saved = saved.replace('"normalized": false', '"normalized": true')
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
    assert all(tokenizer.token_text(token_id) == token for token_id in tokenizer.ids_of(token)[:1] if token != "##")


def test_a_truncation_saved_with_the_tokenizer_is_ignored(folder: Path, tmp_path: Path) -> None:
    saved = Tokenizer.from_file(str(folder / FILES.tokenizer))
    saved.enable_truncation(4)
    saved.enable_padding(length=4)
    saved.save(str(tmp_path / "tokenizer.json"))
    tokenizer = TextTokenizer(tmp_path / "tokenizer.json", max_length=64, mask_id=MASK)
    assert tokenizer.count(["the " * 20, "the"]) == [22, 3]


WORDS = ["kato", "mire", "sulon", "Ber", "géshi", "votri", "ple", "kaka", "x1", "…", "don't", "a-b"]
Tokenizers = dict[str, Tokenizer]


@pytest.fixture(scope="module")
def tokenizers() -> Tokenizers:
    letters = [chr(code) for code in chain(range(0x21, 0x7F), range(0xA1, 0x220))]
    pairs = [first + second for first in "abkm" for second in letters]
    texts = [" ".join(WORDS)] * 36 + [" ".join(letters), "".join(letters), " ".join(pairs)] * 2
    return {algorithm: learned_tokenizer(algorithm, texts) for algorithm in ALGORITHMS}


def known_of(tokenizer: Tokenizer) -> KnownWords:
    known = KnownWords.of(tokenizer)
    assert known is not None
    return known


def assert_same(known: KnownWords, tokenizer: Tokenizer, texts: Sequence[str]) -> int:
    """Assert that ids from known words are the tokenizer's; return the number of texts with unknown words."""
    found = [known.ids(text) for text in texts]
    assert all(ids in (None, tokenizer.encode(text).ids) for text, ids in zip(texts, found, strict=True))
    return found.count(None)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@given(texts=st.lists(odd_text, max_size=6))
@settings(max_examples=150, deadline=None)
def test_unusual_texts_get_the_ids_of_the_tokenizer(tokenizers: Tokenizers, algorithm: str, texts: list[str]) -> None:
    known = known_of(tokenizers[algorithm])
    for _ in range(2):
        assert_same(known, tokenizers[algorithm], texts)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_text_of_known_words_is_not_encoded_again(tokenizers: Tokenizers, algorithm: str) -> None:
    tokenizer = tokenizers[algorithm]
    known = known_of(tokenizer)
    assert assert_same(known, tokenizer, [" ".join(["", *WORDS])]) == 0
    num_words = known.num_words
    assert num_words >= len(WORDS)
    assert assert_same(known, tokenizer, [" ".join(["", *WORDS[::-1]])]) == 0
    assert known.num_words == num_words


@pytest.mark.parametrize("special", ["[UNK]", "[MASK]"])
def test_a_special_token_is_cached_as_a_word_only_if_words_end_before_it(tokenizers: Tokenizers, special: str) -> None:
    texts = [f"kato{special}mire", f"kato {special.lower()} mire", f"[{special}]", f"{special}{special[1:]}"]
    assert assert_same(known_of(tokenizers["wordpiece"]), tokenizers["wordpiece"], texts) == 0
    for algorithm in ("bpe", "unigram"):
        assert known_of(tokenizers[algorithm]).ids(texts[0]) is None, "left to the tokenizer"


def test_a_text_with_a_special_token_that_absorbs_neighbours_is_left_to_the_tokenizer(tokenizers: Tokenizers) -> None:
    for takes in ("lstrip", "rstrip", "single_word"):
        tokenizer = Tokenizer.from_str(tokenizers["wordpiece"].to_str())
        tokenizer.add_special_tokens([AddedToken("<x>", normalized=False, **{takes: True})])
        assert known_of(tokenizer).ids("kato <x> mire") is None


def test_the_longest_of_overlapping_special_tokens_wins(tokenizers: Tokenizers) -> None:
    tokenizer = Tokenizer.from_str(tokenizers["wordpiece"].to_str())
    tokenizer.add_special_tokens([AddedToken(f"[MASK]{more}", normalized=False) for more in ("", "]", "]]")])
    texts = [f"kato [MASK]{more}" for more in ("", "]", "]]", "]]]", "a]")]
    assert assert_same(known_of(tokenizer), tokenizer, texts) == 0


def test_an_evicted_word_is_learned_again(tokenizers: Tokenizers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenization, "_MOST_WORDS", 5)
    known = known_of(tokenizers["bpe"])
    texts = [f" {one} {other}" for one, other in permutations(WORDS, 2)]
    for start in range(0, len(texts), 7):
        assert assert_same(known, tokenizers["bpe"], texts[start : start + 7]) == 0
        assert known.num_words <= 2 * (5 + 2)


def test_concurrent_threads_get_correct_ids(tokenizers: Tokenizers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenization, "_MOST_WORDS", 3)
    tokenizer = tokenizers["wordpiece"]
    texts = [f"{one} {other}" for one, other in permutations(WORDS, 2)] * 20
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(known_of(tokenizer).ids, texts))
    assert found == [tokenizer.encode(text).ids for text in texts]


def test_a_tokenizer_with_a_token_that_is_normalized_or_has_a_space_gets_no_cache(tokenizers: Tokenizers) -> None:
    for token in (AddedToken("kato", normalized=True, special=True), AddedToken("kato mire")):
        tokenizer = Tokenizer.from_str(tokenizers["wordpiece"].to_str())
        tokenizer.add_tokens([token])
        assert KnownWords.of(tokenizer) is None
