"""Select the questions of a task and split them into training, validation and test.

All questions about one context share a split, so that validation and test contexts are not trained on.
"""

import logging
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from clozeline.params.tasks import QuestionAnsweringParams
from clozeline.records.reading.streams import identity_of
from clozeline.tasks import selection
from clozeline.tasks.files import LabelledRecord, Part
from clozeline.tasks.selection import ReasonCounts, Splits, part_of

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
    place: str = field(default="", compare=False)
    """Location of the record."""

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
