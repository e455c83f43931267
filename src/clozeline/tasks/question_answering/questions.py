"""Which questions a task uses, and which of them it trains on, chooses by, and is judged on.

All questions about one context go together: what is judged is asked about text that was not trained on.
"""

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from clozeline.errors import DataError
from clozeline.params import QuestionAnsweringParams
from clozeline.records.identity import identity_of
from clozeline.tasks.record_count import Counted, RecordCount
from clozeline.tasks.records import Record
from clozeline.tasks.sources import Part
from clozeline.tasks.splitting import num_of_each, part_of, remedy, strictest

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Answer:
    """Characters `start` … of the context."""

    text: str
    start: int

    @property
    def end(self) -> int:
        return self.start + len(self.text)


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked of a context, and all answers that people gave; none where it has no answer."""

    question: str
    context: str
    answers: tuple[Answer, ...]
    context_identity: str
    part: Part
    place: str = field(default="", compare=False)
    """Where its record stands."""

    @property
    def is_answerable(self) -> bool:
        return bool(self.answers)

    @property
    def texts(self) -> tuple[str, ...]:
        return tuple(answer.text for answer in self.answers)


@dataclass
class QuestionCount(RecordCount):
    """What became of the records."""

    without_question: int = 0
    without_context: int = 0
    without_findable_answer: int = 0
    """None of its answers stands anywhere in its context."""
    duplicates: int = 0
    in_several_parts: int = 0
    """Questions for training about a context that judges."""


@dataclass
class AnswerCount(Counted):
    """Counted beside the records, some of which have several answers."""

    num_moved: int = 0
    """Answers that stood elsewhere in the context than their offset says."""
    num_not_found: int = 0
    """... and nowhere: they are left out."""


@dataclass(frozen=True)
class Questions:
    train: list[Question]
    validation: list[Question]
    test: list[Question]
    count: QuestionCount = field(default_factory=QuestionCount)
    answers: AnswerCount = field(default_factory=AnswerCount)


def select(records: Iterable[tuple[Part, Record]], params: QuestionAnsweringParams) -> Questions:
    """Read and split.

    Raises:
        DataError: a record is not of the shape, or a part has no questions.
    """
    count, answer_count = QuestionCount(), AnswerCount()
    of_context: dict[str, list[Question]] = {}
    for given, record in records:
        count.num_read += 1
        found = _question(record, given, params, count, answer_count)
        if found is not None:
            of_context.setdefault(found.context_identity, []).append(found)
    parts: dict[Part, list[Question]] = {"train": [], "validation": [], "test": []}
    for questions in of_context.values():
        part = strictest(question.part for question in questions)
        count.add("in_several_parts", *(question.place for question in questions if question.part != part))
        parts[part].extend(_distinct([question for question in questions if question.part == part], count))
    for content in parts.values():  # What comes out does not depend on the order of the records.
        content.sort(key=lambda it: (it.context_identity, it.question, it.context, it.texts))
    count.num_used = sum(map(len, parts.values()))
    count.tell()
    if told := answer_count.told_reasons:
        _LOG.info("answers that stand elsewhere than their offset says: %s", told)
    _check_enough(parts, count)
    return Questions(parts["train"], parts["validation"], parts["test"], count, answer_count)


def _distinct(questions: Iterable[Question], count: QuestionCount) -> list[Question]:
    """Each once: the first of its copies."""
    distinct: dict[Question, None] = {}
    for question in questions:
        if question in distinct:
            count.add("duplicates", question.place)
        else:
            distinct[question] = None
    return list(distinct)


def _question(
    record: Record, given: Part, params: QuestionAnsweringParams, count: QuestionCount, answers: AnswerCount
) -> Question | None:
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
    return Question(question, context, found, identity, part_of(identity, given, params), record.place)


def _spelled(record: Record, field: str) -> list[tuple[str, int]]:
    """(text, offset) of each answer, as the record has them."""
    answers: Any = record.values[field] or {"text": [], "answer_start": []}
    if not isinstance(answers, dict) or not {"text", "answer_start"} <= set(answers):
        raise record.refuse(field, '{"text": [...], "answer_start": [...]}')
    texts, starts = list(answers["text"]), list(answers["answer_start"])
    if len(texts) != len(starts) or not all(isinstance(text, str) for text in texts):
        raise record.refuse(field, "as many offsets as texts")
    if not all(isinstance(start, int) for start in starts):
        raise record.refuse(field, "offsets that are whole numbers: characters of the context")
    return [(text, start) for text, start in zip(texts, starts, strict=True) if text.strip()]


def _placed(text: str, start: int, context: str, count: AnswerCount, at: str) -> Answer | None:
    """Where the offset says, or the place nearest to it that has these characters; `at`: where the record stands."""
    if start >= 0 and context.startswith(text, start):
        return Answer(text, start)
    places = [place for place in range(len(context) - len(text) + 1) if context.startswith(text, place)]
    if not places:
        count.add("num_not_found", at)
        return None
    count.add("num_moved", at)
    return Answer(text, min(places, key=lambda place: (abs(place - start), place)))


def _check_enough(parts: Mapping[Part, list[Question]], count: QuestionCount) -> None:
    if all(parts.values()) and any(question.is_answerable for question in parts["train"]):
        return
    raise DataError(
        "there are too few questions for this task",
        given=f"{count.num_read} records, of which {count.num_used} could be used: {num_of_each(parts)}",
        expected="questions about several contexts for each part, and answers among those for training",
        do=remedy(
            "add questions, or check the fields, `validation_fraction` and `test_fraction` of this task",
            parts,
            count.in_several_parts,
        ),
    )
