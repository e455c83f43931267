"""Sums by group as CSV, for the plots of dvc.yaml and for reports; every row says of how many targets it is.

Shapes: G groups.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

from clozeline.evaluation.answers import Sums
from clozeline.evaluation.groupings import NUM_CONFIDENCE_BINS, WORD_CLASSES, ByFrequency, ByPlace
from clozeline.storage.csv_files import write_csv

Row = Sequence[object]
_FIGURES = ("targets", "loss_nats_per_token", "top1", "top5")


def write_calibration(path: Path, sums: Sums) -> None:
    """A reliability table (DeGroot and Fienberg 1983): where confidence is honest, it is equal to accuracy."""
    rows = (
        (
            group / NUM_CONFIDENCE_BINS,
            (group + 1) / NUM_CONFIDENCE_BINS,
            count,
            sums.confidence_G[group] / count,
            sums.num_top1_G[group] / count,
        )
        for group, count in _filled(sums)
    )
    write_csv(path, ("confidence_above", "confidence_to", "targets", "mean_confidence", "accuracy"), rows)


def write_frequency(path: Path, sums: Sums, grouping: ByFrequency) -> None:
    rows = ((grouping.names[group], grouping.num_kinds_G[group], *_figures(sums, group)) for group, _ in _filled(sums))
    write_csv(path, ("times_in_training", "kinds_of_token", *_FIGURES), rows)


def write_place(path: Path, sums: Sums, grouping: ByPlace) -> None:
    rows = ((*grouping.places(group), *_figures(sums, group)) for group, _ in _filled(sums))
    write_csv(path, ("place_from", "place_to", *_FIGURES), rows)


def write_word_class(path: Path, sums: Sums, *, marks_words: bool) -> None:
    """`marks_words`: whether the tokenizer tells at all where a word begins; if not, its targets are of one class."""
    rows = (
        (WORD_CLASSES[group] if marks_words else "not told by the tokenizer", *_figures(sums, group))
        for group, _ in _filled(sums)
    )
    write_csv(path, ("word_class", *_FIGURES), rows)


def _filled(sums: Sums) -> Iterator[tuple[int, int]]:
    """Groups that have targets, and how many."""
    yield from ((group, count) for group, count in enumerate(sums.num_targets_G.tolist()) if count)


def _figures(sums: Sums, group: int) -> Row:
    count = sums.num_targets_G[group]
    values = (sums.loss_nats_G[group], sums.num_top1_G[group], sums.num_top5_G[group])
    return (count, *(value / count for value in values))
