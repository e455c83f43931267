"""The questions of a task: selected, split into training, validation and test, and made rows of tokens.

All questions about one context share a split, so that validation and test contexts are not trained on. A context that
is too long becomes several overlapping windows.

Shapes: Q questions, W windows, B windows of a batch, L longest of them.
"""

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Self

import numpy as np
import torch

from clozeline.params.tasks import QuestionAnsweringParams
from clozeline.records.reading.streams import identity_of
from clozeline.tasks import selection
from clozeline.tasks.rows import EncodedBatch, Ids, TextRows
from clozeline.tasks.selection import LabelledRecord, Part, ReasonCounts, Splits, part_of
from clozeline.tokenizing.tokenizer.folder import OpenTokenizer

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class AnswerText:
    """An answer, and the offset of its first character in the context."""

    text: str
    start: int

    @property
    def end(self) -> int:
        return self.start + len(self.text)


@dataclass(frozen=True, slots=True)
class ContextQuestion:
    """A question about a context, with all accepted answers; none if it has no answer."""

    question: str
    context: str
    answers: tuple[AnswerText, ...]
    context_identity: str
    part: Part
    place: str = field(default="", compare=False)  # location of the record

    @property
    def is_answerable(self) -> bool:
        return bool(self.answers)

    @property
    def texts(self) -> tuple[str, ...]:
        return tuple(answer.text for answer in self.answers)


@dataclass(frozen=True)
class ContextQuestions(Splits[ContextQuestion]):
    """Splits of a task, and counts of their answers, of which a record can have several."""

    answers: ReasonCounts


def answer_counts() -> ReasonCounts:
    """Return counts of answers found elsewhere in the context than at their offset, or nowhere and dropped."""
    return ReasonCounts({"num_moved": 0, "num_not_found": 0})


def select(records: Iterable[tuple[Part, LabelledRecord]], params: QuestionAnsweringParams) -> ContextQuestions:
    """Read the questions and split them.

    Raises:
        DataError: a record has the wrong shape, a split has no questions, or training has no answer.
    """
    answers = answer_counts()
    # The third reason: no answer of the question occurs in the context.
    reasons = ("without_question", "without_context", "without_findable_answer", "duplicates", "in_several_parts")
    count = ReasonCounts.of_records(*reasons)
    kept = selection.select(
        records,
        lambda found: question_of(found[1], found[0], params, answers),
        lambda it: it.context_identity,
        partial(_distinct, count),
        count,
    )
    splits = Splits.of(kept, lambda it: (it.context_identity, it.question, it.context, it.texts), count)
    if reasons_text := answers.reasons_text:
        _LOG.info("answers that are not at their offset: %s", reasons_text)
    if not (all(splits.parts.values()) and any(question.is_answerable for question in splits.train)):
        raise splits.too_few(
            "questions",
            "some in each split (those about one context share a split), and an answer in training",
            "add questions, or check the fields, `validation_fraction` and `test_fraction` of this task",
        )
    return ContextQuestions(splits.train, splits.validation, splits.test, count, answers)


def _distinct(count: ReasonCounts, questions: Iterable[ContextQuestion]) -> list[ContextQuestion]:
    """Return each question once: the first of its copies."""
    distinct: dict[ContextQuestion, None] = {}
    for question in questions:
        if question in distinct:
            count.add("duplicates", question.place)
        distinct.setdefault(question)
    return list(distinct)


def question_of(
    record: LabelledRecord, given: Part, params: QuestionAnsweringParams, answers: ReasonCounts
) -> ContextQuestion | tuple[str, str]:
    """Return the question of a record; or the reason why it cannot be used, with its location.

    Raises:
        DataError: the record has the wrong shape.
    """
    question, context = record.text(params.question_field).strip(), record.text(params.context_field)
    if not question:
        return "without_question", record.place
    if not context.strip():
        return "without_context", record.place
    spelled = _spelled(record, params.answers_field)
    found = tuple(answer for text, start in spelled if (answer := _placed(text, start, context, answers, record.place)))
    if spelled and not found:
        return "without_findable_answer", record.place
    identity = identity_of(context)
    return ContextQuestion(question, context, found, identity, part_of(identity, given, params), record.place)


def _spelled(record: LabelledRecord, field: str) -> list[tuple[str, int]]:
    """Return (text, offset) of each answer of the record that is not blank."""
    answers: Any = record.values[field] or {"text": [], "answer_start": []}
    if not isinstance(answers, dict) or not {"text", "answer_start"} <= set(answers):
        raise record.refuse(field, '{"text": [...], "answer_start": [...]}')
    texts, starts = list(answers["text"]), list(answers["answer_start"])
    if len(texts) != len(starts) or not all(isinstance(text, str) for text in texts):
        raise record.refuse(field, "as many offsets as texts, and texts that are strings")
    if not all(isinstance(start, int) for start in starts):
        raise record.refuse(field, "whole numbers as offsets, in characters of the context")
    return [(text, start) for text, start in zip(texts, starts, strict=True) if text.strip()]


def _placed(text: str, start: int, context: str, count: ReasonCounts, at: str) -> AnswerText | None:
    """Return the answer at its offset or else at its nearest occurrence; None if it does not occur. `at` is the
    location of the record.
    """
    if start >= 0 and context.startswith(text, start):
        return AnswerText(text, start)
    places = [place for place in range(len(context) - len(text) + 1) if context.startswith(text, place)]
    if not places:
        count.add("num_not_found", at)
        return None
    count.add("num_moved", at)
    return AnswerText(text, min(places, key=lambda place: (abs(place - start), place)))


# Index of the context in a pair.
_CONTEXT = 1
# Position of a window's first token, the target of both ends of "no answer" (Devlin et al. 2018, section 4.3).
NO_ANSWER = 0


@dataclass(frozen=True)
class Windows:
    """One split of the task, as questions and as rows."""

    questions: Sequence[ContextQuestion]
    rows: TextRows
    question_W: Ids
    first_W: Ids  # position of the first token of the context in the window
    # [tokens of the context, 2]: start and end (exclusive) of each token, in characters of the context.
    spans_W: tuple[Ids, ...]
    # Positions of the first and last token of the answer; NO_ANSWER twice if the window does not hold all of it.
    target_W2: Ids
    num_cut_questions: int
    num_in_several: int  # questions whose context is longer than a window

    @classmethod
    def encode(
        cls, questions: Sequence[ContextQuestion], opened: OpenTokenizer, params: QuestionAnsweringParams
    ) -> Self:
        asked, num_cut = _cut([it.question for it in questions], opened, params.max_question_tokens)
        pairs = list(zip(asked, (it.context for it in questions), strict=True))
        opened.tokenizer.enable_truncation(params.max_length, stride=params.stride, strategy="only_second")
        encodings = opened.tokenizer.encode_batch(pairs)
        opened.tokenizer.no_truncation()
        windows = [(n, part) for n, whole in enumerate(encodings) for part in (whole, *whole.overflowing)]
        context = [_context_of(part) for _, part in windows]
        rows = TextRows(
            ids_T=tuple(np.array(part.ids, dtype=np.int64) for _, part in windows),
            pad_id=opened.special_ids.pad,
            num_truncated=0,
            types_T=tuple(np.array(part.type_ids, dtype=np.int64) for _, part in windows),
        )
        targets = [_target(questions[n], *of) for (n, _), of in zip(windows, context, strict=True)]
        return cls(
            questions=questions,
            rows=rows,
            question_W=np.array([n for n, _ in windows], dtype=np.int64),
            first_W=np.array([first for first, _ in context], dtype=np.int64),
            spans_W=tuple(spans for _, spans in context),
            target_W2=np.array(targets, dtype=np.int64).reshape(-1, 2),
            num_cut_questions=num_cut,
            num_in_several=sum(bool(whole.overflowing) for whole in encodings),
        )

    def batch(self, windows_B: Ids, with_types: bool) -> EncodedBatch:
        """Return rows with their targets [B, 2]."""
        targets_B2 = torch.from_numpy(self.target_W2[windows_B])
        return self.rows.encoded(windows_B, with_types=with_types, targets_B=targets_B2)


def _cut(questions: Sequence[str], opened: OpenTokenizer, longest: int) -> tuple[list[str], int]:
    """Return the questions cut to `longest` tokens, and the number of questions that were longer."""
    encodings = opened.tokenizer.encode_batch(list(questions), add_special_tokens=False)
    cut = [
        question if len(encoding) <= longest else question[: encoding.offsets[longest - 1][1]]
        for question, encoding in zip(questions, encodings, strict=True)
    ]
    return cut, sum(len(encoding) > longest for encoding in encodings)


def _context_of(encoding: Any) -> tuple[int, Ids]:
    """Return the position of the context's first token, and the character span of each of its tokens."""
    places = [place for place, sequence in enumerate(encoding.sequence_ids) if sequence == _CONTEXT]
    spans = np.array([encoding.offsets[place] for place in places], dtype=np.int64).reshape(-1, 2)
    return (places[0] if places else 0), spans


def _target(question: ContextQuestion, first: int, spans: Ids) -> tuple[int, int]:
    """Return the positions of the first answer, which is the one to learn, as in `Windows.target_W2`."""
    if not question.answers:
        return NO_ANSWER, NO_ANSWER
    answer = question.answers[0]
    inside = np.flatnonzero((spans[:, 1] > answer.start) & (spans[:, 0] < answer.end))
    if len(inside) == 0 or spans[inside[0], 0] > answer.start or spans[inside[-1], 1] < answer.end:
        return NO_ANSWER, NO_ANSWER
    return first + int(inside[0]), first + int(inside[-1])
