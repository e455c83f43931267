"""Exams of models that point into a text: tags of words, and answers to questions.

Shapes: A answers, L tokens, T texts, W words of a text.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from clozeline.artifacts.finetune.model.held_out import EntitySpan, HeldOut
from clozeline.exporting.answers import UNKNOWN, Answers
from clozeline.exporting.exams.exam import Exam, Holds, Places, different, either, nothing_to_ask
from clozeline.exporting.ratios import Counts
from clozeline.exporting.sample import Sample
from clozeline.inference.answerer import Answerer, context_of, spans_in
from clozeline.inference.entities import OUTSIDE, Extent, extents
from clozeline.inference.question import Rows
from clozeline.inference.spans import SpanSearch
from clozeline.inference.tagger import Tagger
from clozeline.inference.tokenization import Window
from clozeline.tasks.scores.squad import f1

_WORD = re.compile(r"\S+")
_QUESTION_WORDS = 8
_SEARCH = SpanSearch(max_answer_tokens=30)
_NO_ANSWER = -1
_END_BITS = 32


@dataclass(frozen=True, kw_only=True)
class TagsExam(Exam):
    """Exam of taggers. An answer is the tag at the first token of a word; words are separated by white space."""

    tags: Sequence[str]
    first_TW: Sequence[Places]
    true_T: Sequence[frozenset[Extent]]

    def num_items(self, fp32: Answers) -> int:
        """Return the number of true entities; words outside of entities do not count."""
        return sum(map(len, self._right(fp32)))

    def read(self, position: int, rows: Rows) -> Places:
        said_W: Places = rows[self.first_TW[position]].argmax(axis=1)
        return said_W

    def counts(self, given: Answers, fp32: Answers) -> Counts:
        """Return the sums of the entity F1, against fp32's entities if there are no labels."""
        found_T, true_T = self._entities(given), self._right(fp32)
        right = [2 * len(found & true) for found, true in zip(found_T, true_T, strict=True)]
        return Counts(
            np.array(right, dtype=np.int64),
            np.array([len(found) + len(true) for found, true in zip(found_T, true_T, strict=True)], dtype=np.int64),
        )

    def matters(self, one: Answers, other: Answers) -> Holds:
        """Return the words that at least one graph puts into an entity; on most words both agree trivially."""
        outside = self.tags.index(OUTSIDE) if OUTSIDE in self.tags else UNKNOWN
        return either(one.top1_A != outside, other.top1_A != outside)

    def _right(self, fp32: Answers) -> Sequence[frozenset[Extent]]:
        return self._entities(fp32) if self.is_agreement else self.true_T

    def _entities(self, given: Answers) -> list[frozenset[Extent]]:
        ends = np.cumsum([len(first_W) for first_W in self.first_TW])[:-1]
        of_text = np.split(given.top1_A, ends)
        return [frozenset(extents([self.tags[place] for place in said_W.tolist()])) for said_W in of_text]


def tags_exam(model: Tagger, sample: Sample) -> Exam:
    """Return the exam of a tagger, with the held-out sentences or otherwise the texts of the sample.

    Only the first window of a long text is used.

    Raises:
        DataError: no text has a word.
    """
    every = sample.held_out or [HeldOut(text=text) for text in sample.texts]
    windows = _first_windows(model.windows([item.text for item in every]), sample)
    items = [every[window.number] for window in windows]
    texts = [item.text for item in items]
    words_T = [[(word.start(), word.end()) for word in _WORD.finditer(text)] for text in texts]
    placed = [_first_tokens(window, words) for window, words in zip(windows, words_T, strict=True)]
    true_T = [
        _in_words(item.entities, words, seen) for item, words, (_, seen) in zip(items, words_T, placed, strict=True)
    ]
    text_A = np.repeat(np.arange(len(texts)), [len(first_W) for first_W, _ in placed])
    if len(text_A) == 0:
        raise nothing_to_ask(f"{len(texts)} texts without a word, such as {texts[0][:60]!r}")
    return TagsExam(
        texts=[window.read for window in windows],
        text_A=text_A,
        true_A=np.full(len(text_A), UNKNOWN),
        metric="entity F1" if any(true_T) else "entity agreement",
        tags=model.manifest.labels,
        first_TW=[first_W for first_W, _ in placed],
        true_T=true_T,
    )


def _first_windows(windows: Sequence[Window], sample: Sample) -> list[Window]:
    """Return the first window of each text, without windows whose tokens repeat those of another."""
    first = [window for window in windows if window.place == 0]
    return [first[place] for place in different([window.read for window in first], sample)]


def _first_tokens(window: Window, words: Sequence[tuple[int, int]]) -> tuple[Places, list[int]]:
    """Return the first token of each word that has a token in the window, and the indices of these words."""
    starts = [start for start, _ in words]
    first: dict[int, int] = {}
    specials = window.encoding.special_tokens_mask
    for place, (start, end) in enumerate(window.encoding.offsets):
        if not specials[place] and end > start:
            # Byte-level tokens may begin with the space before a word, but their last character is inside it.
            first.setdefault(int(np.searchsorted(starts, end - 1, side="right")) - 1, place)
    seen = sorted(first)
    return np.array([first[word] for word in seen], dtype=np.int64), seen


def _in_words(
    entities: Sequence[EntitySpan], words: Sequence[tuple[int, int]], seen: Sequence[int]
) -> frozenset[Extent]:
    """Return the entities whose first and last word are in `seen`, with word indices into `seen`."""
    place = {word: number for number, word in enumerate(seen)}
    found = set()
    for entity in entities:
        of_entity = [n for n, (start, end) in enumerate(words) if start < entity.end and end > entity.start]
        if of_entity and of_entity[0] in place and of_entity[-1] in place:
            found.add(Extent(entity.type, place[of_entity[0]], place[of_entity[-1]]))
    return frozenset(found)


@dataclass(frozen=True, kw_only=True)
class AnswersExam(Exam):
    """Exam of question answering. An answer is a span of characters of the context, or no answer."""

    windows: Sequence[Window]
    contexts: Sequence[str]
    right_T: Sequence[Sequence[str]]
    no_answer_margin: float | None

    def num_items(self, fp32: Answers) -> int:
        return len(self.texts)

    def read(self, position: int, rows: Rows) -> Places:
        found = spans_in(self.windows[position], rows, _SEARCH)
        margin = self.no_answer_margin
        if not found.spans or (margin is not None and found.nothing - found.spans[0].logit > margin):
            return np.array([_NO_ANSWER])
        best = found.spans[0]
        return np.array([best.start << _END_BITS | best.end])

    def counts(self, given: Answers, fp32: Answers) -> Counts:
        """Return the sums of the word F1 of SQuAD's script, against fp32's answers if there are no labels."""
        right_T = [[text] for text in self._texts(fp32)] if self.is_agreement else self.right_T
        parts = [f1(right, answer) for right, answer in zip(right_T, self._texts(given), strict=True)]
        return Counts(np.array(parts), np.ones(len(parts)))

    def _texts(self, given: Answers) -> list[str]:
        return [
            "" if answer == _NO_ANSWER else context[answer >> _END_BITS : answer & ((1 << _END_BITS) - 1)]
            for answer, context in zip(given.top1_A.tolist(), self.contexts, strict=True)
        ]


def answers_exam(model: Answerer, sample: Sample) -> Exam:
    """Return the exam with the held-out questions, or otherwise with the first words of each text as its question.

    Only the first window of a long context is used.
    """
    asked = [(item.text, item.second or item.text) for item in sample.held_out] or [
        (" ".join(text.split()[:_QUESTION_WORDS]), text) for text in sample.texts
    ]
    windows = _first_windows(model.windows(asked), sample)
    contexts = [asked[window.number][1] for window in windows]
    number_T = np.arange(len(windows))
    right = [sample.held_out[window.number].right for window in windows] if sample.held_out else []
    return AnswersExam(
        texts=[window.read for window in windows],
        text_A=number_T,
        true_A=np.full(len(windows), UNKNOWN),
        metric="answer F1" if right else "answer agreement",
        windows=windows,
        contexts=contexts,
        right_T=[_in_window(*of) for of in zip(right, windows, contexts, strict=False)],
        no_answer_margin=model.manifest.no_answer_margin,
    )


def _in_window(right: Sequence[str], window: Window, context: str) -> list[str]:
    """Return the right answers that occur in the window; if none does, no answer is right."""
    offsets = [window.encoding.offsets[place] for place in context_of(window).tolist()]
    seen = context[offsets[0][0] : offsets[-1][1]] if offsets else ""
    return [answer for answer in right if answer in seen]
