"""Gates that a package has to pass before it becomes the champion."""

import math
import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Literal

from clozeline.artifacts.evaluate.encoder_metrics import EncoderMetrics
from clozeline.artifacts.finetune.task_metrics import Headline, TaskMetrics
from clozeline.artifacts.package_metrics import PackageMetrics
from clozeline.artifacts.paired_figures import NATS_PER_BYTE, PairedFigures
from clozeline.params import ReleaseParams

_COMPARISONS: Mapping[str, Callable[[float, float], bool]] = {
    "at least": operator.ge,
    "at most": operator.le,
    "above": operator.gt,
    "below": operator.lt,
}


_NO_DUPLICATES = ", without near-duplicates of training items"
UNIGRAM_RATIO = "unigram_ratio"
"""Name of the gate that an encoder fails if its training was too short."""


@dataclass(frozen=True)
class Gate:
    """One figure and its limit."""

    name: str
    given: float
    must_be: Literal["at least", "at most", "above", "below"]
    limit: float
    otherwise: Literal["refused", "held", "kept"] = "refused"
    """Outcome for a version that fails: refused; held until a person approves; or only not promoted."""

    @property
    def is_passed(self) -> bool:
        return _COMPARISONS[self.must_be](self.given, self.limit)

    def __str__(self) -> str:
        return f"{self.name} is {self.given:.4f}, {self.must_be} {self.limit:.4f}: {'yes' if self.is_passed else 'NO'}"

    def as_record(self) -> dict[str, object]:
        return {**asdict(self), "is_passed": self.is_passed}


def gates(params: ReleaseParams, candidate: PackageMetrics, trial: PairedFigures | None) -> list[Gate]:
    """Return the gates of a candidate.

    `trial` has the figures of candidate and champion on the same items. It is None if there is nothing to compare with:
    the first version, or a champion that cannot be measured on these items.
    A package without INT8 (no scheme passed at export) has no agreement gate. A published model has only that one.
    """
    agreement = candidate.export.int8_agreement
    checked = [] if agreement is None else [Gate("int8_agreement", agreement, "at least", params.min_int8_agreement)]
    quality = candidate.quality
    if isinstance(quality, EncoderMetrics):
        ratio = quality.unigram_perplexity / quality.perplexity
        checked.append(Gate(UNIGRAM_RATIO, ratio, "at least", params.min_unigram_ratio))
    if params.max_contaminated_fraction is not None and quality is not None:
        checked.append(_not_seen_before(params.max_contaminated_fraction, quality))
    if trial is not None:
        checked += _against_champion(params, trial)
    elif isinstance(quality, TaskMetrics):
        checked += _better_than_baselines(params, quality.headline)
    return checked


def _against_champion(params: ReleaseParams, trial: PairedFigures) -> Iterator[Gate]:
    """Yield the gate of the figure itself, then that of the worse end of its interval, as `params.promote` asks."""
    if trial.metric == NATS_PER_BYTE:
        name, value, worse_end = "perplexity_ratio", *map(trial.as_perplexity_ratio, (trial.difference, trial.high))
        most = params.max_perplexity_ratio
        yield Gate(name, value, "at most", most)
        proof: dict[str, Gate] = {
            "when_better": Gate(f"{name}_high", worse_end, "below", 1.0, "kept"),
            "when_not_worse": Gate(f"{name}_high", worse_end, "at most", most, "held"),
        }
    else:
        name, least = f"{trial.metric}_delta", params.min_accuracy_delta
        yield Gate(name, trial.difference, "at least", least)
        proof = {
            "when_better": Gate(f"{name}_low", trial.low, "above", 0.0, "kept"),
            "when_not_worse": Gate(f"{name}_low", trial.low, "at least", least, "held"),
        }
    if params.promote in proof:
        yield proof[params.promote]


def forgetting(params: ReleaseParams, old_text: PairedFigures | None) -> list[Gate]:
    """Return the gate on the validation text of the champion: refuse what the interval shows to be forgotten.

    `old_text` is None unless the candidate continues from the champion.
    """
    if old_text is None:
        return []
    least = old_text.as_perplexity_ratio(old_text.low)
    return [Gate("forgetting_low", least, "at most", params.max_forgetting)]


def _better_than_baselines(params: ReleaseParams, headline: Headline) -> Iterator[Gate]:
    """Yield the gates of a task that has no champion to compare with. A NaN baseline sets no gate.

    The whole interval has to be above the limit. The lead over the baseline is paired by test item, so its interval is
    narrower than that of the figure, which decides for kinds that do not measure the lead. Test items that are
    near-duplicates of training items do not count.
    """
    top = headline.judged
    limits = [(top.metric, "trivial answer", top.low, top.trivial_value)]
    if params.beat_baseline and not math.isnan(top.baseline_value):
        limits.append(
            (f"{top.metric}_lead_low", "baseline", top.lead_low, 0.0)
            if top.lead_low is not None
            else (top.metric, "baseline", top.low, top.baseline_value)
        )
    for figure, name, given, limit in limits:
        if not math.isnan(limit):
            yield Gate(
                f"{figure} against the {name}{'' if top is headline else _NO_DUPLICATES}", given, "above", limit, "held"
            )


def _not_seen_before(limit: float, quality: EncoderMetrics | TaskMetrics) -> Gate:
    """Return the contamination gate; an uncounted fraction is taken as 1, so it fails any limit below 1."""
    found = quality.contaminated_fraction
    return Gate("contaminated_fraction", 1.0 if found is None else found, "at most", limit)
