"""Counts of every text's fate: the figures of metrics/preprocess.json."""

import platform
from collections import Counter
from importlib import metadata

from pydantic import BaseModel, ConfigDict

from clozeline.text.documents import DropReason

_DECISIVE_PACKAGES = ("ftfy", "mwparserfromhell", "numpy", "pyarrow", "rensa")


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True)


class SplitReport(_Record):
    documents: int
    characters: int
    bytes: int
    """Size of the text in UTF-8."""
    sources: int
    """Number of distinct labels."""


class SimilarityReport(_Record):
    compared_pairs: int
    similar_pairs: int
    groups: int
    """Groups of two or more kept texts, which stay in one split."""
    grouped_documents: int
    largest_group: int
    groups_too_large: int
    """Groups that went to training whole instead of being drawn."""


class CorpusReport(_Record):
    """Counts of texts: `documents_in` = `kept` + every reason of `dropped`; `kept` = the documents of all splits."""

    documents_read: int
    documents_split: int
    """Documents longer than `max_characters`, which were cut into parts."""
    added_by_splitting: int
    documents_in: int
    kept: int
    dropped: dict[str, int]
    splits: dict[str, SplitReport]
    similarity: SimilarityReport
    versions: dict[str, str]
    """Versions of the packages that decide the text besides the source and the params."""

    def check(self) -> None:
        """Assert that no text is lost."""
        assert self.documents_in == self.documents_read + self.added_by_splitting
        assert self.documents_in == self.kept + sum(self.dropped.values()), (self.documents_in, self.kept, self.dropped)
        assert self.kept == sum(split.documents for split in self.splits.values())

    def summary(self) -> str:
        """Return a readable summary of a few lines."""
        dropped = dropped_in_words(Counter({DropReason(reason): count for reason, count in self.dropped.items()}))
        lines = [
            f"{self.documents_in:,} texts in = {self.kept:,} kept + {dropped}",
            f"{self.documents_split:,} documents were longer than max_characters and were cut into parts",
            f"{self.similarity.groups:,} groups of similar texts ({self.similarity.grouped_documents:,} texts, "
            f"the largest {self.similarity.largest_group:,}); each group stays in one split",
        ]
        for name, split in self.splits.items():
            lines.append(f"{name}: {split.documents:,} texts, {split.bytes / 1e6:,.1f} MB, {split.sources:,} labels")
        return "\n".join(lines)


def dropped_counts(dropped: Counter[DropReason]) -> dict[str, int]:
    """Return the count of every reason by name, including reasons that did not occur."""
    return {reason.value: dropped[reason] for reason in DropReason}


def dropped_in_words(dropped: Counter[DropReason]) -> str:
    """Return, for example, `3 empty, 5 too short`."""
    counts = [f"{dropped[reason]:,} {reason.replace('_', ' ')}" for reason in DropReason if dropped[reason]]
    return ", ".join(counts) or "none dropped"


def versions_used() -> dict[str, str]:
    return {"python": platform.python_version()} | {name: metadata.version(name) for name in _DECISIVE_PACKAGES}
