"""CSV tables of sums by group, for the plots of dvc.yaml and for reports. Every row holds its number of targets.

Shapes: G groups.
"""

from collections.abc import Iterator
from pathlib import Path

from clozeline.artifacts.evaluate.loss_tables import CalibrationRow, FrequencyRow, PlaceRow, WordClassRow
from clozeline.evaluation.groupings import NUM_CONFIDENCE_BINS, WORD_CLASSES, ByFrequency, ByPlace
from clozeline.evaluation.judged import Sums
from clozeline.storage.csv_files import write_records


def write_calibration(path: Path, sums: Sums) -> None:
    rows = (
        CalibrationRow(
            confidence_above=group / NUM_CONFIDENCE_BINS,
            confidence_to=(group + 1) / NUM_CONFIDENCE_BINS,
            targets=count,
            mean_confidence=float(sums.confidence_G[group] / count),
            accuracy=float(sums.num_top1_G[group] / count),
        )
        for group, count in _filled(sums)
    )
    write_records(path, CalibrationRow, rows)


def write_frequency(path: Path, sums: Sums, grouping: ByFrequency) -> None:
    rows = (
        FrequencyRow(grouping.names[group], int(grouping.num_kinds_G[group]), *_figures(sums, group))
        for group, _ in _filled(sums)
    )
    write_records(path, FrequencyRow, rows)


def write_place(path: Path, sums: Sums, grouping: ByPlace) -> None:
    places = ((group, grouping.places(group)) for group, _ in _filled(sums))
    rows = (PlaceRow(first, last, *_figures(sums, group)) for group, (first, last) in places)
    write_records(path, PlaceRow, rows)


def write_word_class(path: Path, sums: Sums, *, marks_words: bool) -> None:
    """Write figures by piece kind; one row if the tokenizer does not mark word starts (`marks_words` is false)."""
    rows = (
        WordClassRow(WORD_CLASSES[group] if marks_words else "not marked by the tokenizer", *_figures(sums, group))
        for group, _ in _filled(sums)
    )
    write_records(path, WordClassRow, rows)


def _filled(sums: Sums) -> Iterator[tuple[int, int]]:
    """Yield the groups that have targets, with their numbers of targets."""
    yield from ((group, count) for group, count in enumerate(sums.num_targets_G.tolist()) if count)


def _figures(sums: Sums, group: int) -> tuple[int, float, float, float]:
    """Return the number of targets, nats per target, top-1 and top-5."""
    count = int(sums.num_targets_G[group])
    loss_nats, num_top1, num_top5 = (
        float(sums_G[group]) for sums_G in (sums.loss_nats_G, sums.num_top1_G, sums.num_top5_G)
    )
    return count, loss_nats / count, num_top1 / count, num_top5 / count
