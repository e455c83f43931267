"""Gates that a package has to pass before it becomes the champion."""

import math
import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Literal

from clozeline.artifacts.evaluate.encoder_metrics import EncoderMetrics
from clozeline.artifacts.finetune.task_metrics import Headline, TaskMetrics
from clozeline.artifacts.package_metrics import PackageMetrics
from clozeline.params import ReleaseParams

_COMPARISONS: Mapping[str, Callable[[float, float], bool]] = {
    "at least": operator.ge,
    "at most": operator.le,
    "above": operator.gt,
}


@dataclass(frozen=True)
class Gate:
    """One figure and its limit."""

    name: str
    given: float
    must_be: Literal["at least", "at most", "above"]
    limit: float
    else_held: bool = False
    """Whether a failing version is held for manual approval instead of refused."""

    @property
    def is_passed(self) -> bool:
        return _COMPARISONS[self.must_be](self.given, self.limit)

    def __str__(self) -> str:
        return f"{self.name} is {self.given:.4f}, {self.must_be} {self.limit:.4f}: {'yes' if self.is_passed else 'NO'}"

    def as_record(self) -> dict[str, object]:
        return {**asdict(self), "is_passed": self.is_passed}


def gates(params: ReleaseParams, candidate: PackageMetrics, champion: PackageMetrics | None) -> list[Gate]:
    """Return the gates of a candidate.

    `champion` is None if there is nothing to compare with: the first version, or figures measured on other text.
    A package without INT8 (no scheme passed at export) has no agreement gate.
    """
    agreement = candidate.export.int8_agreement
    checked = [] if agreement is None else [Gate("int8_agreement", agreement, "at least", params.min_int8_agreement)]
    quality = candidate.quality
    if isinstance(quality, EncoderMetrics):
        ratio = quality.unigram_perplexity / quality.perplexity
        checked.append(Gate("unigram_ratio", ratio, "at least", params.min_unigram_ratio))
    if params.max_contaminated_fraction is not None:
        checked.append(_not_seen_before(params.max_contaminated_fraction, quality))
    if champion is not None:
        checked.append(_not_worse(params, quality, champion.quality))
    elif isinstance(quality, TaskMetrics):
        checked += _better_than_baselines(params, quality.headline)
    return checked


def _better_than_baselines(params: ReleaseParams, top: Headline) -> Iterator[Gate]:
    """Yield the gates of a task that has no champion to compare with. A NaN baseline sets no gate."""
    limits = [("trivial answer", top.low, top.trivial_value)]
    if params.beat_baseline:
        limits.append(("baseline", top.value, top.baseline_value))
    for name, given, limit in limits:
        if not math.isnan(limit):
            yield Gate(f"{top.metric} against the {name}", given, "above", limit, else_held=True)


def perplexity_ratio(candidate: EncoderMetrics, champion: EncoderMetrics) -> float:
    """Return the candidate's perplexity / the champion's, both per token of the champion.

    Perplexity depends on the tokenizer: at equal model quality, longer tokens give a higher perplexity. The loss per
    byte of text does not, so this compares losses per byte and scales by the champion's bytes per token. The loss
    includes the charge for unknown tokens. With equal tokenizers this is the plain ratio.
    """
    champion_bytes_per_token = champion.text_bytes / champion.target_tokens
    return math.exp((candidate.nats_per_byte - champion.nats_per_byte) * champion_bytes_per_token)


def _not_seen_before(limit: float, quality: EncoderMetrics | TaskMetrics) -> Gate:
    """Return the contamination gate; an uncounted fraction is taken as 1, so it fails any limit below 1."""
    found = quality.contaminated_fraction
    return Gate("contaminated_fraction", 1.0 if found is None else found, "at most", limit)


def _not_worse(
    params: ReleaseParams, candidate: EncoderMetrics | TaskMetrics, champion: EncoderMetrics | TaskMetrics
) -> Gate:
    if isinstance(candidate, EncoderMetrics) and isinstance(champion, EncoderMetrics):
        return Gate("perplexity_ratio", perplexity_ratio(candidate, champion), "at most", params.max_perplexity_ratio)
    assert isinstance(candidate, TaskMetrics), "a name is registered for one kind of model"
    assert isinstance(champion, TaskMetrics), "a name is registered for one kind of model"
    ours, theirs = candidate.headline, champion.headline
    return Gate(f"{ours.metric}_delta", ours.value - theirs.value, "at least", params.min_accuracy_delta)
