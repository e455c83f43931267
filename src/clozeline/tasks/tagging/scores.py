"""Metrics of predicted entities. An entity is right if its type and both ends are right.

Shapes: S sentences, E entity types.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from clozeline.tasks.intervals import bootstrap_interval, paired_interval
from clozeline.tasks.tagging.schemes import OUTSIDE

Tags = Sequence[Sequence[str]]
Counts = npt.NDArray[np.int64]


@dataclass(frozen=True)
class TypeScore:
    """Metrics of one entity type. A ratio with denominator 0 is 0, as in seqeval with `zero_division=0`."""

    precision: float
    recall: float
    f1: float
    num_entities: int


@dataclass(frozen=True)
class EntityScores:
    precision: float
    recall: float
    f1: float
    """F1 over all entities (micro), as conlleval and seqeval print it."""
    f1_low: float
    f1_high: float
    word_accuracy: float
    num_entities: int
    per_type: dict[str, TypeScore]
    counts_S3: Counts = field(compare=False)
    """Entities of each sentence: found rightly, found, actual."""

    def f1_on(self, places_S: Counts) -> float:
        """Return F1 on these sentences."""
        return _ratios(self.counts_S3[places_S].sum(axis=0))[2]

    def lead_over(self, other: "EntityScores") -> tuple[float, float]:
        """Return the 95 % interval of the difference in F1 to `other`, paired by sentence."""
        return paired_interval(self.f1_on, other.f1_on, len(self.counts_S3))


def score(actual: Tags, predicted: Tags) -> EntityScores:
    """Compare predicted with actual tags of the same words."""
    found = [(spans_of(tags), spans_of(guess)) for tags, guess in zip(actual, predicted, strict=True)]
    types = sorted({name for both in found for entities in both for name, _, _ in entities})
    counts_S3 = np.array([[len(a & p), len(p), len(a)] for a, p in found], dtype=np.int64)
    low, high = bootstrap_interval(lambda places_S: _ratios(counts_S3[places_S].sum(axis=0))[2], len(found))
    precision, recall, f1 = _ratios(counts_S3.sum(axis=0))
    words = [pair for tags, guess in zip(actual, predicted, strict=True) for pair in zip(tags, guess, strict=True)]
    return EntityScores(
        precision=precision,
        recall=recall,
        f1=f1,
        f1_low=low,
        f1_high=high,
        word_accuracy=float(np.mean([tag == guess for tag, guess in words])),
        num_entities=int(counts_S3[:, 2].sum()),
        per_type={name: _of_type(name, found) for name in types},
        counts_S3=counts_S3,
    )


def entities_in(words: Sequence[str], tags: Sequence[str]) -> list[tuple[str, str]]:
    """Return (words, type) of each entity, in order."""
    spans = sorted(spans_of(tags), key=lambda span: span[1])
    return [(" ".join(words[first : last + 1]), name) for name, first, last in spans]


def spans_of(tags: Sequence[str]) -> set[tuple[str, int, int]]:
    """Return (type, first word, last word) of each entity; seqeval and the CoNLL-2003 scorer read invalid tag sequences
    the same way.
    """
    from seqeval.metrics.sequence_labeling import get_entities  # imports scikit-learn

    return set(get_entities(list(tags))) if any(tag != OUTSIDE for tag in tags) else set()


Found = Sequence[tuple[set[tuple[str, int, int]], set[tuple[str, int, int]]]]


def _of_type(name: str, found: Found) -> TypeScore:
    counts_3 = np.zeros(3, dtype=np.int64)
    for actual, predicted in found:
        of_type = {span for span in actual if span[0] == name}, {span for span in predicted if span[0] == name}
        counts_3 += [len(of_type[0] & of_type[1]), len(of_type[1]), len(of_type[0])]
    precision, recall, f1 = _ratios(counts_3)
    return TypeScore(precision, recall, f1, int(counts_3[2]))


def _ratios(counts_3: Counts) -> tuple[float, float, float]:
    """Return precision, recall and F1 from the counts (right, predicted, actual)."""
    right, predicted, actual = counts_3.tolist()
    return (
        right / predicted if predicted else 0.0,
        right / actual if actual else 0.0,
        2 * right / (predicted + actual) if predicted + actual else 0.0,
    )
