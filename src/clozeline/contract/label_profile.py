"""Profile of the labelled data of a task: classes, conflicts, and the rows of the test split."""

import hashlib
import heapq
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from pydantic import BaseModel, ConfigDict

from clozeline.contract.labelled_items import labelled_item
from clozeline.params import FinetuneParams
from clozeline.tasks.reading import task_records

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
