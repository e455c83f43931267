"""Labelled records as the contract compares them: one function for each kind of task that has labels.

Pairs of texts have none: copies of a scored pair may differ, and a matching pair has no label.
"""

from dataclasses import dataclass
from functools import singledispatch
from typing import Final

from clozeline.params import FinetuneParams, LabelledParams, QuestionAnsweringParams, TaggingParams
from clozeline.records.files.identity import identity_of
from clozeline.tasks.classification.labelled import Labelled
from clozeline.tasks.question_answering.questions import AnswerCount, QuestionCount, question_of
from clozeline.tasks.records import Record
from clozeline.tasks.sources import Part
from clozeline.tasks.splitting import part_of
from clozeline.tasks.tagging.schemes import OUTSIDE, type_of
from clozeline.tasks.tagging.sentences import words_and_tags

LABELLED: Final = (LabelledParams, TaggingParams, QuestionAnsweringParams)
"""Params of the tasks whose records have labels."""


@dataclass(frozen=True, slots=True)
class LabelledItem:
    """A labelled text, sentence or question."""

    identity: str
    """The same for copies, which have to have the same labels."""
    labels: tuple[str, ...]
    classes: tuple[str, ...]
    """Distinct classes that it is counted in."""
    part: Part


@singledispatch
def labelled_item(params: FinetuneParams, record: Record, given: Part) -> LabelledItem | None:
    """Return the labelled item of a record given in the split `given`; None if it has no text or no label.

    Raises:
        DataError: the record has the wrong shape.
    """
    raise TypeError(type(params).__name__)


@labelled_item.register
def _of_labels(params: LabelledParams, record: Record, given: Part) -> LabelledItem | None:
    item = Labelled.of(record, given, params)
    if item.labels is None or not all(item.texts):
        return None
    identity = identity_of(*(text.strip() for text in item.texts))
    labels = tuple(sorted(set(item.labels)))
    return LabelledItem(identity, labels, labels, part_of(identity, given, params))


@labelled_item.register
def _of_tags(params: TaggingParams, record: Record, given: Part) -> LabelledItem | None:
    words, tags = words_and_tags(record, params)
    if not words:
        return None
    identity = identity_of(" ".join(words))
    types = {type_of(tag) for tag in tags} - {OUTSIDE}
    return LabelledItem(identity, tags, tuple(sorted(types or {OUTSIDE})), part_of(identity, given, params))


@labelled_item.register
def _of_answers(params: QuestionAnsweringParams, record: Record, given: Part) -> LabelledItem | None:
    question = question_of(record, given, params, QuestionCount(), AnswerCount())
    if question is None:
        return None
    answers = tuple(sorted(set(question.texts)))
    kind = "answerable" if question.is_answerable else "unanswerable"
    return LabelledItem(identity_of(question.question, question.context), answers, (kind,), question.part)
