"""Profile of the labelled data of a task: classes, conflicts, and the rows of the test split."""

import hashlib
import heapq
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from pydantic import BaseModel, ConfigDict

from clozeline.params import LabelledParams
from clozeline.records.files.identity import identity_of
from clozeline.tasks.classification.labelled import Labelled
from clozeline.tasks.reading import task_records
from clozeline.tasks.splitting import part_of

_MOST_TEST_ROWS = 2_000
_DIGEST_CHARACTERS = 16


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
    def read(cls, params: LabelledParams, data: Path) -> Self:
        """Return the profile of a task's data.

        Raises:
            DataError: a file cannot be read.
        """
        labels: dict[str, set[tuple[str, ...]]] = {}
        is_test: dict[str, bool] = {}
        for part, record in task_records(params, data):
            item = Labelled.of(record, part, params)
            if item.labels is not None and all(item.texts):
                identity = identity_of(*(text.strip() for text in item.texts))
                labels.setdefault(identity, set()).add(tuple(sorted(set(item.labels))))
                is_test[identity] = is_test.get(identity, False) or part_of(identity, part, params) == "test"
        clean = {identity: next(iter(sets)) for identity, sets in labels.items() if len(sets) == 1}
        rows = {_digest(identity): _digest("\n".join(clean[identity])) for identity in clean if is_test[identity]}
        return cls(
            num_texts=len(labels),
            num_conflicts=len(labels) - len(clean),
            texts_by_label=dict(sorted(Counter(label for of_text in clean.values() for label in of_text).items())),
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
