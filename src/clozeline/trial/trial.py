"""Runs a candidate's package and the champion's on the same items.

The fp32 graphs answer, because their figures do not depend on the processor; INT8 has gates of its own against fp32.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from clozeline.artifacts.export.manifest import read_manifest
from clozeline.artifacts.finetune.model.held_out import HeldOut, read_items
from clozeline.artifacts.paired_figures import NATS_PER_BYTE, PairedFigures
from clozeline.errors import DataError
from clozeline.evaluation.bootstrap import difference_interval
from clozeline.exporting.ratios import Counts
from clozeline.exporting.sample import Sample, read_sample
from clozeline.inference.language_model import LanguageModel
from clozeline.inference.open_model import OpenModel
from clozeline.inference.package import load
from clozeline.machine.cores import available_cores
from clozeline.storage.fingerprints import sha256_of
from clozeline.trial.answered_items import counts_on
from clozeline.trial.token_loss import TextLosses, losses_of

_NUM_SAMPLES = 2_000
_SEED = 0


class IncomparableError(DataError):
    """No item, or no figure, is common to both packages."""


@dataclass(frozen=True)
class TrialItems:
    """Items of a trial."""

    root: Path
    """Folder of the project."""
    validation_text: str
    """Parquet file with the texts for language models, relative to `root`."""
    test_items: str
    """File with the candidate's test items, relative to `root`."""
    most: int
    """Largest number of items; of more, those with the lowest hashes."""
    longest: int
    """Tokens of a row in which encoders read the validation text."""


def try_both(candidate: Path, champion: Path, items: TrialItems) -> PairedFigures:
    """Return the figures of the packages in the folders `candidate` and `champion` on the same items.

    Language models predict every token of the validation text. Other models answer the candidate's test items.

    Raises:
        IncomparableError: they are different kinds of model, or there are no items with an answer that both can give.
        ArtifactError: a package is damaged.
        DataError: the text cannot be read.
    """
    kinds = [read_manifest(folder).task for folder in (candidate, champion)]
    if kinds[0] != kinds[1]:
        raise incomparable(f"the candidate does {kinds[0]}, the champion {kinds[1]}")
    opened = [load(folder, precision="fp32", num_threads=available_cores()) for folder in (candidate, champion)]
    if all(isinstance(model, LanguageModel) for model in opened):
        return _on_text(opened, items)
    return _on_test_items(opened, items)


def incomparable(given: str) -> IncomparableError:
    """Return the error for two packages that have no figure in common."""
    return IncomparableError(
        f"candidate and champion cannot be measured on the same items: {given}",
        do="look at both, then decide: `clozeline release --accept` makes the candidate the champion",
    )


def _on_text(opened: Sequence[OpenModel], items: TrialItems) -> PairedFigures:
    path = items.root / items.validation_text
    if not path.is_file():
        raise incomparable(f"no {items.validation_text or 'validation text: `clozeline run` makes it of your text'}")
    texts = read_sample(path, items.most).texts
    ours, theirs = (
        losses_of(model, texts, longest=items.longest) for model in opened if isinstance(model, LanguageModel)
    )
    if not ours.num_targets or not theirs.num_targets:
        raise incomparable("a text without a token that both models know")
    return _paired(
        NATS_PER_BYTE, [_as_counts(ours), _as_counts(theirs)], items.validation_text, path, _bytes_per_token(theirs)
    )


def _on_test_items(opened: Sequence[OpenModel], items: TrialItems) -> PairedFigures:
    place = items.test_items
    held_out = read_items(items.root / place)[: items.most]
    if not held_out:
        raise incomparable(f"no {place}")
    unknown = f"{place} has no right answer that both know; `clozeline import --labelled FILE` takes some"
    if not any(map(_has_answer, held_out)):
        raise incomparable(unknown)
    sample = Sample(texts=(), labels=(), held_out=held_out, keeps_copies=True)
    (metric, ours), (other_metric, theirs) = (counts_on(model, sample) for model in opened)
    if metric == other_metric and metric.endswith("agreement"):
        raise incomparable(unknown)
    if metric != other_metric or len(ours.part_T) != len(theirs.part_T):
        raise incomparable(
            f"{metric} of {len(ours.part_T)} items, the champion's {other_metric} of {len(theirs.part_T)}"
        )
    return _paired(metric, [ours, theirs], place, items.root / place)


def _has_answer(item: HeldOut) -> bool:
    return bool(item.right or item.entities) or item.score is not None


def _paired(
    metric: str, counts: Sequence[Counts], place: str, path: Path, bytes_per_token: float | None = None
) -> PairedFigures:
    part_D2 = np.stack([one.part_T for one in counts], axis=1).astype(np.float64)
    whole_D2 = np.stack([one.whole_T for one in counts], axis=1).astype(np.float64)
    low, high = difference_interval(part_D2, whole_D2, seed=_SEED, num_samples=_NUM_SAMPLES)
    return PairedFigures(
        metric=metric,
        candidate=counts[0].value,
        champion=counts[1].value,
        low=low,
        high=high,
        num_items=len(part_D2),
        items=place,
        items_sha256=sha256_of(path),
        champion_bytes_per_token=bytes_per_token,
    )


def _as_counts(losses: TextLosses) -> Counts:
    return Counts(losses.nats_T, losses.bytes_T)


def _bytes_per_token(losses: TextLosses) -> float:
    return float(losses.bytes_T.sum()) / losses.num_tokens
