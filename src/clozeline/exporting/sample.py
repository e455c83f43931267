"""The texts on which INT8 is compared with fp32."""

import hashlib
import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from operator import methodcaller
from pathlib import Path
from typing import Self

from clozeline.artifacts.finetune.model.held_out import HeldOut
from clozeline.artifacts.preprocess.clean_text import TEXT, columns_of
from clozeline.errors import DataError


@dataclass(frozen=True)
class Sample:
    """Input for both graphs: texts in the order of their hashes, or held-out items of the task."""

    texts: Sequence[str]
    labels: Sequence[str | None]
    """Label of each text, where the file has one."""
    held_out: Sequence[HeldOut] = ()
    """Held-out items of the task with their labels; if there are any, they replace the texts."""
    keeps_copies: bool = False
    """Whether to ask texts with equal tokens too: models with different tokenizers then answer the same items."""

    def parted(self, num_deciding: int, num_calibrating: int) -> tuple[Self, Self]:
        """Split into the texts of the exam and disjoint ones for calibration of activation ranges.

        If there are too few texts, both parts shrink in the same proportion. A single text is in both parts; the
        caller logs that.
        """
        num_texts = len(self.texts)
        scarcity = min(num_texts / (num_deciding + num_calibrating), 1.0)
        num_first = num_texts - min(math.ceil(scarcity * num_calibrating), num_texts - 1)
        ends = (0, num_first), (num_first if num_texts > 1 else 0, num_first + num_calibrating)
        first, second = (
            replace(self, texts=self.texts[start:end], labels=self.labels[start:end]) for start, end in ends
        )
        return first, second


def read_sample(texts: Path, num_texts: int, label_field: str | None = None) -> Sample:
    """Return the `num_texts` distinct texts with the lowest hashes, a sample that does not depend on the row order.

    Their labels come from the column `label_field`; a text with two different labels gets none.

    Raises:
        ArtifactError: the file is missing or damaged, or lacks the column of the texts or `label_field`.
        DataError: the file has no texts.
    """
    columns = columns_of(texts, TEXT, *([label_field] if label_field else []))
    labels: dict[bytes, set[str]] = {}
    distinct: dict[bytes, str] = {}
    rows = chain.from_iterable(zip(*map(methodcaller("to_pylist"), batch), strict=True) for batch in columns)
    for text, *label in (row for row in rows if row[0]):
        digest = hashlib.sha256(text.encode()).digest()
        distinct[digest] = text
        labels.setdefault(digest, set()).update(str(name) for name in label if name is not None)
    if not distinct:
        raise DataError(
            f"{texts} holds no text on which INT8 can be compared with fp32",
            do="give preprocess more text, or raise `validation_fraction`",
        )
    chosen = heapq.nsmallest(num_texts, distinct)
    only = [labels[digest] for digest in chosen]
    return Sample(
        [distinct[digest] for digest in chosen], [next(iter(names)) if len(names) == 1 else None for names in only]
    )
