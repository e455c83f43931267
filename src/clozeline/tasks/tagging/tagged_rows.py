"""Conversion of sentences to rows of tokens, and of tags at tokens back to tags of words.

The first token of a word carries its tag (Devlin et al. 2018, section 5.3). A sentence longer than a row continues in
the next row, split between two words, so that every word gets a tag.

Shapes: S sentences, R rows, B rows of a batch, L longest row, W words of a row.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch

from clozeline.tasks.rows import EncodedBatch, Ids, TextRows
from clozeline.tasks.tagging.data import Sentence
from clozeline.tokenizing.tokenizer.folder import OpenTokenizer, is_byte_level

NO_TARGET = -100
"""Target that cross entropy ignores."""
_FRAME_TOKENS = 2


@dataclass(frozen=True)
class Cut:
    """A row without special tokens: its tokens, the positions where words begin, and the indices of these words."""

    ids: Ids
    first_W: Ids
    word_W: Ids


@dataclass(frozen=True)
class TaggedRows:
    """One split of the task, as sentences and as rows."""

    sentences: Sequence[Sentence]
    rows: TextRows
    sentence_R: Ids
    first_RW: tuple[Ids, ...]
    """Position of the first token of each word in the row,"""
    word_RW: tuple[Ids, ...]
    """... the index of the word in its sentence,"""
    target_RW: tuple[Ids, ...]
    """... and the index of its tag in `tags`; NO_TARGET for a tag that training lacks."""
    num_split: int
    """Sentences in more than one row."""
    num_unread_words: int
    """Words without a token, such as a lone control character; their tag is O."""

    @classmethod
    def encode(cls, sentences: Sequence[Sentence], tags: Sequence[str], opened: OpenTokenizer, max_length: int) -> Self:
        place = {tag: place for place, tag in enumerate(tags)}
        cuts_S = [_cut(tokens_W, max_length - _FRAME_TOKENS) for tokens_W in _tokens_of_words(sentences, opened)]
        ids = opened.special_ids
        flat = [(number, cut) for number, cuts in enumerate(cuts_S) for cut in cuts]
        return cls(
            sentences=sentences,
            rows=TextRows(tuple(np.concatenate([[ids.cls], cut.ids, [ids.sep]]) for _, cut in flat), ids.pad, 0),
            sentence_R=np.array([number for number, _ in flat], dtype=np.int64),
            first_RW=tuple(cut.first_W + 1 for _, cut in flat),
            word_RW=tuple(cut.word_W for _, cut in flat),
            target_RW=tuple(_targets(sentences[number], cut.word_W, place) for number, cut in flat),
            num_split=sum(len(cuts) > 1 for cuts in cuts_S),
            num_unread_words=sum(len(it.words) for it in sentences) - sum(len(cut.word_W) for _, cut in flat),
        )

    def batch(self, rows_B: Ids) -> EncodedBatch:
        """Return rows with their targets [B, L]."""
        target_BL = np.full((len(rows_B), self.rows.length_T[rows_B].max()), NO_TARGET, dtype=np.int64)
        for number, row in enumerate(rows_B.tolist()):
            target_BL[number, self.first_RW[row]] = self.target_RW[row]
        return self.rows.encoded(rows_B, targets_B=torch.from_numpy(target_BL))

    def num_targets(self, rows_B: Ids) -> int:
        return sum(int((self.target_RW[row] != NO_TARGET).sum()) for row in rows_B.tolist())

    def tags_of(self, said_RW: Mapping[int, Ids], tags: Sequence[str], outside: str) -> list[list[str]]:
        """Return the tag of each word of each sentence. `said_RW` maps a row to the index in `tags` of each word."""
        found = [[outside] * len(sentence.words) for sentence in self.sentences]
        for row, said_W in said_RW.items():
            of_sentence = found[int(self.sentence_R[row])]
            for word, place in zip(self.word_RW[row].tolist(), said_W.tolist(), strict=True):
                of_sentence[word] = tags[place]
        return found


def _tokens_of_words(sentences: Sequence[Sentence], opened: OpenTokenizer) -> list[list[Ids]]:
    """Return the tokens of each word of each sentence."""
    space = " " if is_byte_level(opened.tokenizer) else ""
    opened.tokenizer.no_truncation()
    spelled = [[f"{space}{word}" if place else word for place, word in enumerate(it.words)] for it in sentences]
    encodings = opened.tokenizer.encode_batch(spelled, is_pretokenized=True, add_special_tokens=False)
    all_words = []
    for sentence, encoding in zip(sentences, encodings, strict=True):
        ids = np.array(encoding.ids, dtype=np.int64)
        word_ids = np.array(encoding.word_ids, dtype=np.int64)
        bounds = np.searchsorted(word_ids, np.arange(len(sentence.words) + 1))
        all_words.append([ids[start:stop] for start, stop in itertools.pairwise(bounds)])
    return all_words


def _cut(tokens_W: Sequence[Ids], longest: int) -> list[Cut]:
    """Fill each row with as many words as fit; a word longer than a row is cut."""
    cuts: list[Cut] = []
    pieces: list[Ids] = []
    first: list[int] = []
    words: list[int] = []
    length = 0

    def close() -> None:
        if pieces:
            cuts.append(Cut(np.concatenate(pieces), np.array(first, dtype=np.int64), np.array(words, dtype=np.int64)))

    for word, tokens in enumerate(tokens_W):
        if len(tokens) == 0:
            continue
        kept = tokens[:longest]
        if length + len(kept) > longest:
            close()
            pieces, first, words, length = [], [], [], 0
        pieces.append(kept)
        first.append(length)
        words.append(word)
        length += len(kept)
    close()
    return cuts


def _targets(sentence: Sentence, word_W: Ids, place: Mapping[str, int]) -> Ids:
    return np.array([place.get(sentence.tags[word], NO_TARGET) for word in word_W.tolist()], dtype=np.int64)
