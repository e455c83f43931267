"""Profile of the labelled data of a task: classes, conflicts, and the rows of the test split.

Pairs of texts have none: copies of a scored pair may differ, and a matching pair has no label.
"""

import hashlib
import heapq
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import singledispatch
from pathlib import Path
from typing import Final, Self

from pydantic import BaseModel, ConfigDict

from clozeline.params.tasks import FinetuneParams, LabelledParams, QuestionAnsweringParams, TaggingParams
from clozeline.records.reading.streams import identity_of
from clozeline.tasks.files import LabelledRecord, Part
from clozeline.tasks.formats import Labelled, task_records
from clozeline.tasks.question_answering.data import answer_counts, question_of
from clozeline.tasks.selection import part_of
from clozeline.tasks.tagging.data import OUTSIDE, type_of, words_and_tags

LABELLED: Final = (LabelledParams, TaggingParams, QuestionAnsweringParams)
"""Params of the tasks whose records have labels."""
_MOST_TEST_ROWS = 2_000
_DIGEST_CHARACTERS = 16


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
def labelled_item(params: FinetuneParams, record: LabelledRecord, given: Part) -> LabelledItem | None:
    """Return the labelled item of a record given in the split `given`; None if it has no text or no label.

    Raises:
        DataError: the record has the wrong shape.
    """
    raise TypeError(type(params).__name__)


@labelled_item.register
def _of_labels(params: LabelledParams, record: LabelledRecord, given: Part) -> LabelledItem | None:
    item = Labelled.of(record, given, params)
    if item.labels is None or not all(item.texts):
        return None
    identity = identity_of(*(text.strip() for text in item.texts))
    labels = tuple(sorted(set(item.labels)))
    return LabelledItem(identity, labels, labels, part_of(identity, given, params))


@labelled_item.register
def _of_tags(params: TaggingParams, record: LabelledRecord, given: Part) -> LabelledItem | None:
    words, tags = words_and_tags(record, params)
    if not words:
        return None
    identity = identity_of(" ".join(words))
    types = {type_of(tag) for tag in tags} - {OUTSIDE}
    return LabelledItem(identity, tags, tuple(sorted(types or {OUTSIDE})), part_of(identity, given, params))


@labelled_item.register
def _of_answers(params: QuestionAnsweringParams, record: LabelledRecord, given: Part) -> LabelledItem | None:
    question = question_of(record, given, params, answer_counts())
    if isinstance(question, tuple):
        return None
    answers = tuple(sorted(set(question.texts)))
    kind = "answerable" if question.is_answerable else "unanswerable"
    return LabelledItem(identity_of(question.question, question.context), answers, (kind,), question.part)


class LabelProfile(BaseModel):
    """Figures of the labelled texts of one task."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    num_texts: int
    """Number of distinct texts with labels."""
    num_conflicts: int
    """Number of texts whose copies have different labels."""
    texts_by_label: Mapping[str, int]
    test_rows: Mapping[str, str]
    """Digest of a text of the test split → digest of its labels; the 2,000 lowest digests if there are more."""

    @classmethod
    def read(cls, params: FinetuneParams, data: Path) -> Self:
        """Return the profile of a task's data.

        Raises:
            DataError: a file cannot be read.
        """
        labels: dict[str, set[tuple[str, ...]]] = {}
        classes: dict[str, tuple[str, ...]] = {}
        is_test: dict[str, bool] = {}
        for given, record in task_records(params, data):
            item = labelled_item(params, record, given)
            if item is not None:
                labels.setdefault(item.identity, set()).add(item.labels)
                classes[item.identity] = item.classes
                is_test[item.identity] = is_test.get(item.identity, False) or item.part == "test"
        clean = {identity: next(iter(sets)) for identity, sets in labels.items() if len(sets) == 1}
        rows = {_digest(identity): _digest("\n".join(clean[identity])) for identity in clean if is_test[identity]}
        return cls(
            num_texts=len(labels),
            num_conflicts=len(labels) - len(clean),
            texts_by_label=dict(sorted(Counter(name for identity in clean for name in classes[identity]).items())),
            test_rows={row: rows[row] for row in heapq.nsmallest(_MOST_TEST_ROWS, rows)},
        )

    @property
    def conflict_share(self) -> float:
        return self.num_conflicts / max(self.num_texts, 1)

    def changed_test_rows(self, accepted: "LabelProfile") -> float:
        """Return the share of the accepted test rows that are gone or have other labels now.

        Rows that a growing test split pushes out of the lowest digests are not counted.
        """
        last = max(self.test_rows, default="") if len(self.test_rows) == _MOST_TEST_ROWS else "g"
        compared = [row for row in accepted.test_rows if row <= last]
        changed = sum(self.test_rows.get(row) != accepted.test_rows[row] for row in compared)
        return changed / max(len(compared), 1)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGEST_CHARACTERS]
