"""metrics/preprocess.json: the fate of every raw text."""

from collections.abc import Mapping
from typing import Self

from pydantic import Field, model_validator

from clozeline.artifacts.record import MetricFile, Record


class SplitMetrics(Record):
    documents: int
    characters: int
    bytes: int
    """Size of the text in UTF-8."""
    sources: int
    """Number of distinct labels."""


class SimilarityMetrics(Record):
    compared_pairs: int
    similar_pairs: int
    groups: int
    """Groups of two or more kept texts, which stay in one split."""
    grouped_documents: int
    largest_group: int
    full_groups: int
    """Groups of validation and holdout that take no more texts."""


class CorpusMetrics(MetricFile):
    """Counts of texts: `documents_in` = `kept` + every reason of `dropped`; `kept` = the documents of all splits."""

    documents_read: int
    documents_split: int
    """Documents longer than `max_characters`, which were cut into parts."""
    added_by_splitting: int
    documents_in: int
    kept: int
    dropped: Mapping[str, int]
    """Every reason, including those that did not occur → number of texts."""
    altered: Mapping[str, int] = Field(default_factory=dict)
    """Every kind of character that cleaning leaves out, such as `zero_width` → number of documents that had some."""
    splits: Mapping[str, SplitMetrics]
    similarity: SimilarityMetrics
    versions: Mapping[str, str]
    """Versions of the packages that decide the text besides the source and the params."""

    @model_validator(mode="after")
    def _counts_add_up(self) -> Self:
        assert self.documents_in == self.documents_read + self.added_by_splitting
        assert self.documents_in == self.kept + sum(self.dropped.values()), (self.documents_in, self.kept, self.dropped)
        assert self.kept == sum(split.documents for split in self.splits.values())
        return self

    def summary(self) -> str:
        """Return a readable summary of a few lines."""
        lines = [
            f"{self.documents_in:,} texts in = {self.kept:,} kept + {dropped_in_words(self.dropped)}",
            f"{self.documents_split:,} documents were longer than max_characters and were cut into parts",
            f"{self.similarity.groups:,} groups of similar texts ({self.similarity.grouped_documents:,} texts, "
            f"the largest {self.similarity.largest_group:,}); each group stays in one split",
        ]
        if any(self.altered.values()):
            lines.insert(1, f"altered by cleaning: {in_words(self.altered)}")
        for name, split in self.splits.items():
            lines.append(f"{name}: {split.documents:,} texts, {split.bytes / 1e6:,.1f} MB, {split.sources:,} labels")
        return "\n".join(lines)


def dropped_in_words(dropped: Mapping[str, int]) -> str:
    """Return, for example, `3 empty, 5 too short`."""
    return in_words(dropped) or "none dropped"


def in_words(counts: Mapping[str, int]) -> str:
    """Return the counts above 0, for example `3 empty, 5 too short`."""
    return ", ".join(f"{count:,} {name.replace('_', ' ')}" for name, count in counts.items() if count)
