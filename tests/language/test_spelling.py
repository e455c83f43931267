"""Claim: which tokens continue a word is right for every kind of tokenizer, and punctuation is part of no word (P9)."""

import json
import re
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Encoding, Tokenizer, decoders, models, pre_tokenizers, trainers

from clozeline.language.spelling import Spelling
from clozeline.params.text import TokenizeParams
from clozeline.system.errors import ArtifactError
from clozeline.tokenizing.tokenizer.folder import save
from clozeline.tokenizing.vocabularies import learn
from clozeline.tokenizing.words import CountedTexts

TEXT = "Don't re-read naïve (unbelievable) 12monkeys, under_score… Привет мир—да हिन्दी भाषा 東京タワー !!!"
WORDS = ["Don", "'", "t", "re", "-", "read", "naïve", "(", "unbelievable", ")", "12monkeys", ",", "under", "_", "score"]
WORDS += ["…", "Привет", "мир", "—", "да", "हिन्दी", "भाषा"]
"""Words of the text before its ideographs, for any tokenizer."""


SPACES = ("Ġ", "▁")


def words(tokenizer: Tokenizer, text: str) -> list[str]:
    """Return the text of each word, as `Spelling` joins tokens."""
    encoding = tokenizer.encode(text, add_special_tokens=False)
    continues_N = continued(tokenizer, encoding)
    pieces: list[list[int]] = []
    for (start, end), continues in zip(encoding.offsets, continues_N, strict=True):
        if continues:
            pieces[-1][1] = max(pieces[-1][1], end)
        else:
            pieces.append([start, end])
    return [text[start:end].strip() for start, end in pieces]


def assert_words_are_right(tokenizer: Tokenizer, text: str) -> None:
    """Assert that a token continues a word where the characters before and after its start are both of a word."""
    encoding = tokenizer.encode(text, add_special_tokens=False)
    expected, end_before = [], 0
    for token, (start, end) in zip(encoding.tokens, encoding.offsets, strict=True):
        is_inside_character = start < end_before
        touches = start > 0 and is_of_word(text[start - 1]) and is_of_word(text[start])
        expected.append(is_inside_character or touches)
        end_before = 0 if token in SPACES else end  # a lone space token has the offsets of the next letter
    assert list(zip(encoding.tokens, continued(tokenizer, encoding).tolist(), strict=True)) == list(
        zip(encoding.tokens, expected, strict=True)
    )


def is_of_word(character: str) -> bool:
    return re.fullmatch(r"[^\W_\u3040-\u9fff]|[\u0900-\u097f]", character) is not None


def continued(tokenizer: Tokenizer, encoding: Encoding) -> np.ndarray:
    ids_N = np.array(encoding.ids)
    return Spelling.of(tokenizer.to_str()).continues_word(ids_N, np.arange(len(ids_N)) > 0)


def byte_level(vocab_size: int, *texts: str, add_prefix_space: bool = False) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=add_prefix_space)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=vocab_size, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(texts * 3, trainer)
    return tokenizer


def sentence_piece(vocab_size: int, *texts: str) -> Tokenizer:
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=vocab_size, unk_token="<unk>", special_tokens=["<unk>"], show_progress=False
    )
    tokenizer.train_from_iterator(texts * 3, trainer)
    return tokenizer


@pytest.mark.parametrize("vocab_size", [256, 290, 330])
@pytest.mark.parametrize("add_prefix_space", [False, True])
def test_byte_level_bpe_words_are_runs_of_letters_and_digits(vocab_size: int, add_prefix_space: bool) -> None:
    """P9, from single bytes on; the first word of a text has no Ġ before it."""
    assert_words_are_right(byte_level(vocab_size, TEXT, add_prefix_space=add_prefix_space), TEXT)


def test_sentencepiece_words_are_runs_of_letters_and_digits() -> None:
    """P9."""
    assert_words_are_right(sentence_piece(90, TEXT), TEXT)


def test_a_sentence_in_byte_tokens_has_its_visible_words() -> None:
    assert [word for word in words(byte_level(256, TEXT), TEXT) if word][: len(WORDS)] == WORDS


def test_each_token_of_a_script_without_spaces_is_a_word() -> None:
    """Otherwise a Japanese sentence would be one word, hidden whole."""
    assert words(byte_level(256, TEXT), "東京タワー") == list("東京タワー")


@pytest.mark.parametrize("algorithm", ["bpe", "unigram"])
def test_words_of_our_own_tokenizers_are_correct_in_every_text(
    algorithm: str, texts: list[str], partitions: list[CountedTexts]
) -> None:
    """P9."""
    tokenizer = learn(tokenize_params(algorithm), partitions)
    for text in texts[:100]:
        assert_words_are_right(tokenizer, text)


def test_word_boundaries_of_wordpiece_follow_its_continuation_marks(
    texts: list[str], partitions: list[CountedTexts]
) -> None:
    """P9: the same as the words that `tokenizers` itself counts."""
    tokenizer = learn(tokenize_params("wordpiece"), partitions)
    for text in texts[:50]:
        encoding = tokenizer.encode(text, add_special_tokens=False)
        by_tokenizers = [False, *(one == two for one, two in pairwise(encoding.word_ids))]
        assert continued(tokenizer, encoding).tolist() == by_tokenizers


def tokenize_params(algorithm: str) -> TokenizeParams:
    return TokenizeParams(
        algorithm=algorithm,
        existing=None,
        vocab_size=400,
        min_frequency=2,
        lowercase=True,
        shard_tokens=5000,
    )


def spelled(
    model: dict[str, object], pre_tokenizer: object = None, added: tuple[tuple[str, int], ...] = ()
) -> Spelling:
    added_tokens = [{"content": content, "id": id_} for content, id_ in added]
    return Spelling.of(json.dumps({"model": model, "added_tokens": added_tokens, "pre_tokenizer": pre_tokenizer}))


def continues(spelling: Spelling, *tokens: str) -> list[bool]:
    ids_N = np.array([spelling.ids[token] for token in tokens])
    return spelling.continues_word(ids_N, np.arange(len(ids_N)) > 0).tolist()


def test_a_word_continues_up_to_its_end_of_word_suffix() -> None:
    """As in the BPE of XLM and CLIP."""
    spelling = spelled({"type": "BPE", "vocab": {"un": 0, "do</w>": 1, "it</w>": 2}, "end_of_word_suffix": "</w>"})
    assert continues(spelling, "un", "do</w>", "it</w>") == [False, True, False]


def test_each_token_of_a_word_level_vocabulary_is_a_word() -> None:
    spelling = spelled({"type": "WordLevel", "vocab": {"one": 0, "two": 1}})
    assert spelling.marks_words
    assert continues(spelling, "one", "two") == [False, False]


def test_sentencepiece_byte_tokens_are_joined_into_characters() -> None:
    vocab = [["▁mir", -1.0], ["<0xD0>", -2.0], ["<0xB4>", -2.0], ["<0xE2>", -2.0], ["<0x80>", -2.0], ["a", -1.0]]
    spelling = spelled({"type": "Unigram", "vocab": vocab, "byte_fallback": True})
    assert continues(spelling, "▁mir", "<0xD0>", "<0xB4>", "a") == [False, True, True, True]
    # A dash in three bytes: a word of its own, and what follows it begins another.
    assert continues(spelling, "▁mir", "<0xE2>", "<0x80>", "<0xB4>", "a") == [False, False, True, True, False]


def test_an_added_token_separates_words() -> None:
    vocab = {"un": 0, "##do": 1, "[SEP]": 2, "##new": 3}
    model = {"type": "WordPiece", "vocab": vocab, "continuing_subword_prefix": "##"}
    spelling = spelled(model, added=(("[SEP]", 2), ("##new", 3), ("extra", 4)))
    assert continues(spelling, "un", "[SEP]", "##do") == [False, False, False]
    assert continues(spelling, "un", "##new", "extra") == [False, False, False]
    assert spelling.ids["extra"] == 4


def test_a_word_does_not_continue_across_the_start_of_a_row() -> None:
    spelling = spelled({"type": "WordPiece", "vocab": {"un": 0, "##do": 1}, "continuing_subword_prefix": "##"})
    follows_N = np.array([False, True, False, True])
    assert spelling.continues_word(np.array([1, 1, 1, 1]), follows_N).tolist() == [False, True, False, True]


def test_a_vocabulary_without_continuation_marks_has_no_word_boundaries() -> None:
    assert not spelled({"type": "BPE", "vocab": {"one": 0, "two": 1}, "merges": []}).marks_words


def test_a_tokenizer_folder_gives_the_ids_of_its_tokenizer(tmp_path: Path, partitions: list[CountedTexts]) -> None:
    save(learn(tokenize_params("wordpiece"), partitions), tmp_path)
    spelling = Spelling.open(tmp_path)
    assert spelling.ids == Tokenizer.from_file(str(tmp_path / "tokenizer.json")).get_vocab(with_added_tokens=True)


@pytest.mark.parametrize("content", [None, "{", "{}"])
def test_a_damaged_tokenizer_is_named(tmp_path: Path, content: str | None) -> None:
    if content:
        (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(ArtifactError, match=str(tmp_path)):
        Spelling.open(tmp_path)
