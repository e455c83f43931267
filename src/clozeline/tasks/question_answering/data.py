"""Select the questions of a task and split them into training, validation and test.

All questions about one context share a split, so that validation and test contexts are not trained on.
"""

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from clozeline.params.tasks import QuestionAnsweringParams
from clozeline.records.reading.streams import identity_of
from clozeline.system.errors import DataError
from clozeline.tasks.files import LabelledRecord, Part
from clozeline.tasks.selection import Counted, RecordCount, num_of_each, part_of, remedy, strictest

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


@dataclass
class QuestionCount(RecordCount):
    """Counts of records, used and dropped."""

    without_question: int = 0
    without_context: int = 0
    without_findable_answer: int = 0
    """Questions without an answer that occurs in the context."""
    duplicates: int = 0
    in_several_parts: int = 0
    """Questions about a context that a stricter split holds (test before validation before training)."""


@dataclass
class AnswerCount(Counted):
    """Counts of answers, of which a record can have several."""

    num_moved: int = 0
    """Answers found elsewhere in the context than at their offset."""
    num_not_found: int = 0
    """Answers that do not occur in the context; these are dropped."""


@dataclass(frozen=True)
class ContextQuestions:
    train: list[ContextQuestion]
    validation: list[ContextQuestion]
    test: list[ContextQuestion]
    count: QuestionCount = field(default_factory=QuestionCount)
    answers: AnswerCount = field(default_factory=AnswerCount)


def select(records: Iterable[tuple[Part, LabelledRecord]], params: QuestionAnsweringParams) -> ContextQuestions:
    """Read the questions and split them.

    Raises:
        DataError: a record has the wrong shape, a split has no questions, or training has no answer.
    """
    count, answer_count = QuestionCount(), AnswerCount()
    of_context: dict[str, list[ContextQuestion]] = {}
    for given, record in records:
        count.num_read += 1
        found = question_of(record, given, params, count, answer_count)
        if found is not None:
            of_context.setdefault(found.context_identity, []).append(found)
    parts: dict[Part, list[ContextQuestion]] = {"train": [], "validation": [], "test": []}
    for questions in of_context.values():
        part = strictest(question.part for question in questions)
        count.add("in_several_parts", *(question.place for question in questions if question.part != part))
        parts[part].extend(_distinct([question for question in questions if question.part == part], count))
    for content in parts.values():  # The result does not depend on the order of the records.
        content.sort(key=lambda it: (it.context_identity, it.question, it.context, it.texts))
    count.num_used = sum(map(len, parts.values()))
    count.tell()
    if reasons := answer_count.reasons_text:
        _LOG.info("answers that are not at their offset: %s", reasons)
    _check_enough(parts, count)
    return ContextQuestions(parts["train"], parts["validation"], parts["test"], count, answer_count)


def _distinct(questions: Iterable[ContextQuestion], count: QuestionCount) -> list[ContextQuestion]:
    """Return each question once: the first of its copies."""
    distinct: dict[ContextQuestion, None] = {}
    for question in questions:
        if question in distinct:
            count.add("duplicates", question.place)
        else:
            distinct[question] = None
    return list(distinct)


def question_of(
    record: LabelledRecord, given: Part, params: QuestionAnsweringParams, count: QuestionCount, answers: AnswerCount
) -> ContextQuestion | None:
    """Return the question of a record; None, with its reason in `count`, if it cannot be used.

    Raises:
        DataError: the record has the wrong shape.
    """
    question, context = record.text(params.question_field).strip(), record.text(params.context_field)
    if not question:
        count.add("without_question", record.place)
        return None
    if not context.strip():
        count.add("without_context", record.place)
        return None
    spelled = _spelled(record, params.answers_field)
    found = tuple(answer for text, start in spelled if (answer := _placed(text, start, context, answers, record.place)))
    if spelled and not found:
        count.add("without_findable_answer", record.place)
        return None
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


def _placed(text: str, start: int, context: str, count: AnswerCount, at: str) -> AnswerText | None:
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


def _check_enough(parts: Mapping[Part, list[ContextQuestion]], count: QuestionCount) -> None:
    if all(parts.values()) and any(question.is_answerable for question in parts["train"]):
        return
    raise DataError(
        f"too few questions: {count.num_read} records, {count.num_used} of use: {num_of_each(parts)}; a task needs some"
        " in each split (those about one context share a split), and an answer in training",
        do=remedy(
            "add questions, or check the fields, `validation_fraction` and `test_fraction` of this task",
            parts,
            count.in_several_parts,
        ),
    )
