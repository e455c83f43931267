"""What a package has to show before it may be the champion."""

import math
from dataclasses import asdict, dataclass
from typing import Literal

from clozeline.artifacts.encoder_metrics import EncoderMetrics
from clozeline.artifacts.package_metrics import PackageMetrics
from clozeline.artifacts.task_metrics import TaskMetrics
from clozeline.params import ReleaseParams


@dataclass(frozen=True)
class Gate:
    """One figure and its limit."""

    name: str
    given: float
    must_be: Literal["at least", "at most"]
    limit: float

    @property
    def is_passed(self) -> bool:
        if self.must_be == "at least":
            return self.given >= self.limit
        return self.given <= self.limit

    def __str__(self) -> str:
        return f"{self.name} is {self.given:.4f}, {self.must_be} {self.limit:.4f}: {'yes' if self.is_passed else 'NO'}"

    def as_record(self) -> dict[str, object]:
        return {**asdict(self), "is_passed": self.is_passed}


def gates(params: ReleaseParams, candidate: PackageMetrics, champion: PackageMetrics | None) -> list[Gate]:
    """The gates of a candidate.

    `champion` is None where there is nothing to compare with: a first version, or figures of other text. A package
    that serves fp32, because no INT8 scheme passed when it was exported, has no agreement to show.
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
    return checked


def perplexity_ratio(candidate: EncoderMetrics, champion: EncoderMetrics) -> float:
    """The candidate's perplexity over the champion's, both in the champion's tokens.

    A perplexity belongs to its tokenizer: the same model quality in longer tokens is a higher perplexity. The loss
    per byte of text does not, so it is what is compared, times the champion's bytes per token; text that a tokenizer
    leaves unknown has its price in it. With the same tokens this is the plain ratio.
    """
    champion_bytes_per_token = champion.text_bytes / champion.target_tokens
    return math.exp((candidate.nats_per_byte - champion.nats_per_byte) * champion_bytes_per_token)


def _not_seen_before(limit: float, quality: EncoderMetrics | TaskMetrics) -> Gate:
    """What was not counted does not pass: nobody knows that it is little."""
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
