"""Claim: which tokens continue a word is right for every kind of tokenizer, and punctuation is part of no word (P9)."""

import json
import re
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Encoding, Tokenizer, decoders, models, pre_tokenizers, trainers

from clozeline.language.spelling import Spelling
from clozeline.params.text import TokenizeParams
from clozeline.system.errors import ArtifactError
from clozeline.tokenizing.vocabularies import learn

TEXT = "Don't re-read naïve (unbelievable) 12monkeys, under_score… Привет мир—да हिन्दी भाषा 東京タワー !!!"
"""Words of the text before its ideographs, for any tokenizer."""


SPACES = ("Ġ", "▁")


def assert_words_are_right(tokenizer: Tokenizer, *texts: str) -> None:
    """Assert that a token continues a word where the characters before and after its start are both of a word."""
    spelling = spelling_of(tokenizer)
    for text in texts:
        encoding = tokenizer.encode(text, add_special_tokens=False)
        expected, end_before = [], 0
        for token, (start, end) in zip(encoding.tokens, encoding.offsets, strict=True):
            is_inside_character = start < end_before
            touches = start > 0 and is_of_word(text[start - 1]) and is_of_word(text[start])
            expected.append((token, is_inside_character or touches))
            end_before = 0 if token in SPACES else end  # a lone space token has the offsets of the next letter
        assert list(zip(encoding.tokens, continued(spelling, encoding), strict=True)) == expected


def is_of_word(character: str) -> bool:
    return re.fullmatch(r"[^\W_\u3040-\u9fff]|[\u0900-\u097f]", character) is not None


def spelling_of(tokenizer: Tokenizer) -> Spelling:
    return Spelling.of(tokenizer.to_str())


def continued(spelling: Spelling, encoding: Encoding) -> list[bool]:
    ids_N = np.array(encoding.ids)
    return spelling.continues_word(ids_N, np.arange(len(ids_N)) > 0).tolist()


def byte_level(vocab_size: int, *texts: str, add_prefix_space: bool = False) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=add_prefix_space)
    tokenizer.decoder = decoders.ByteLevel()
    sizes = {"vocab_size": vocab_size, "initial_alphabet": pre_tokenizers.ByteLevel.alphabet()}
    tokenizer.train_from_iterator(texts * 3, trainers.BpeTrainer(**sizes, show_progress=False))
    return tokenizer


def sentence_piece(vocab_size: int, *texts: str) -> Tokenizer:
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    special = {"unk_token": "<unk>", "special_tokens": ["<unk>"]}
    trainer = trainers.UnigramTrainer(vocab_size=vocab_size, **special, show_progress=False)
    tokenizer.train_from_iterator(texts * 3, trainer)
    return tokenizer


@pytest.mark.parametrize(
    "learned",
    [
        *(partial(byte_level, size, TEXT, add_prefix_space=adds) for size in (256, 290, 330) for adds in (False, True)),
        partial(sentence_piece, 90, TEXT),
    ],
)
def test_words_are_runs_of_letters_and_digits(learned: Callable[[], Tokenizer]) -> None:
    """P9, from single bytes on; the first word of a text has no Ġ before it."""
    assert_words_are_right(learned(), TEXT)


@pytest.mark.parametrize("algorithm", ["bpe", "unigram"])
def test_words_of_our_own_tokenizers_are_correct_in_every_text(algorithm: str, texts, partitions) -> None:
    """P9."""
    assert_words_are_right(learn(tokenize_params(algorithm), partitions), *texts[:100])


def test_word_boundaries_of_wordpiece_follow_its_continuation_marks(texts, partitions) -> None:
    """P9: the same as the words that `tokenizers` itself counts."""
    tokenizer = learn(tokenize_params("wordpiece"), partitions)
    spelling = spelling_of(tokenizer)
    for text in texts[:50]:
        encoding = tokenizer.encode(text, add_special_tokens=False)
        by_tokenizers = [False, *(one == two for one, two in pairwise(encoding.word_ids))]
        assert continued(spelling, encoding) == by_tokenizers


def tokenize_params(algorithm: str) -> TokenizeParams:
    sizes = {"vocab_size": 400, "min_frequency": 2, "shard_tokens": 5000}
    return TokenizeParams(algorithm=algorithm, existing=None, lowercase=True, **sizes)


def spelled(kind: str, vocab: object, added: tuple[str, ...] = (), **more: object) -> Spelling:
    added_tokens = [{"content": content, "id": id_} for id_, content in enumerate(added, start=2)]
    model = {"type": kind, "vocab": vocab, **more}
    return Spelling.of(json.dumps({"model": model, "added_tokens": added_tokens, "pre_tokenizer": None}))


WORDPIECES = ("WordPiece", {"un": 0, "##do": 1, "[SEP]": 2, "##new": 3})
BYTES = [["▁mir", -1.0], ["<0xD0>", -2.0], ["<0xB4>", -2.0], ["<0xE2>", -2.0], ["<0x80>", -2.0], ["a", -1.0]]
SUFFIXED = spelled("BPE", {"un": 0, "do</w>": 1, "it</w>": 2}, end_of_word_suffix="</w>")  # as in XLM and CLIP
WHOLE = spelled("WordLevel", {"one": 0, "two": 1})
IN_BYTES = spelled("Unigram", BYTES, byte_fallback=True)
WITH_ADDED = spelled(*WORDPIECES, ("[SEP]", "##new", "extra"), continuing_subword_prefix="##")


@pytest.mark.parametrize(
    ("spelling", "tokens", "continues"),
    [
        (SUFFIXED, ["un", "do</w>", "it</w>"], [False, True, False]),
        (WHOLE, ["one", "two"], [False, False]),
        (IN_BYTES, ["▁mir", "<0xD0>", "<0xB4>", "a"], [False, True, True, True]),
        # A dash in three bytes: a word of its own, and what follows it begins another.
        (IN_BYTES, ["▁mir", "<0xE2>", "<0x80>", "<0xB4>", "a"], [False, False, True, True, False]),
        (WITH_ADDED, ["un", "##do", "[SEP]", "##do"], [False, True, False, False]),
        (WITH_ADDED, ["un", "##new", "extra"], [False, False, False]),  # an added token separates words
    ],
)
def test_the_marks_of_each_kind_of_vocabulary_are_understood(
    spelling: Spelling, tokens: list[str], continues: list[bool]
) -> None:
    ids_N = np.array([spelling.ids[token] for token in tokens])
    assert spelling.continues_word(ids_N, np.arange(len(ids_N)) > 0).tolist() == continues
    assert not spelling.continues_word(ids_N, np.zeros(len(ids_N), bool)).any(), "each begins a row"
    assert spelling.marks_words
    assert not spelled("BPE", {"one": 0, "two": 1}, merges=[]).marks_words


@pytest.mark.parametrize("content", [None, "{", "{}"])
def test_a_damaged_tokenizer_is_named(tmp_path: Path, content: str | None) -> None:
    if content:
        (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(ArtifactError, match=str(tmp_path)):
        Spelling.open(tmp_path)
