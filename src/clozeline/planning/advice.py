"""Advice that follows from the figures of a plan, as a table with a row for each piece."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from clozeline.encoder.families import FAMILIES
from clozeline.language.objectives import OBJECTIVES
from clozeline.planning.costs import TOO_LARGE, TrainingPlan
from clozeline.planning.timing import Speed

_DAY_SECONDS = 86_400
_SHORT_BUDGET_TOKENS = 100_000_000
_ENOUGH_TOKENS_PER_PARAMETER = 20
_HIGH_RATE, _HIGH_RATE_IF_WIDE = 6e-3, 2e-3
"""Learning rates of AdamW above which a model learns less; the second is for models of `_WIDE` and more."""
_WIDE = 512
_EAGER = {"deberta-v2", "deberta-v3"}


@dataclass(frozen=True)
class Situation:
    """The facts that advice is based on."""

    plan: TrainingPlan
    speed: Speed | None
    memory_bytes: int
    """Memory of the device that will train."""

    @property
    def family(self) -> str:
        return self.plan.family

    @property
    def seconds(self) -> float:
        """Estimated seconds for the whole budget; 0 if nothing was timed."""
        return self.plan.budget_tokens / self.speed.tokens_per_second if self.speed else 0.0


@dataclass(frozen=True)
class _Advice:
    holds: Callable[[Situation], bool]
    text: str


def advise(situation: Situation) -> Iterator[str]:
    """Yield every applicable piece of advice, in the order of the table."""
    return (advice.text for advice in _ADVICE if advice.holds(situation))


def _is_largest_part_vocabulary(situation: Situation) -> bool:
    count = situation.plan.count
    return count.embedding > 2 * count.body


def _has_few_tokens(situation: Situation) -> bool:
    params = situation.plan.params
    could_be_smaller = params.start is None and params.model.size != "mini"
    return could_be_smaller and situation.plan.budget_tokens < _ENOUGH_TOKENS_PER_PARAMETER * situation.plan.count.body


def _is_post_norm_on_short_budget(situation: Situation) -> bool:
    family = FAMILIES.get(situation.family)
    is_post_norm = family is not None and not family.is_pre_norm and situation.plan.params.steps != 0
    return is_post_norm and situation.plan.budget_tokens < _SHORT_BUDGET_TOKENS


def _has_high_rate(situation: Situation, limit: float) -> bool:
    optimizer = situation.plan.params.optimizer
    return "adamw" in optimizer.kind and optimizer.learning_rate > limit and situation.plan.params.steps != 0


def _is_wide(situation: Situation) -> bool:
    shape = situation.plan.shape
    return shape is not None and shape.hidden_size >= _WIDE


def _exports(situation: Situation) -> bool:
    family = FAMILIES.get(situation.family)
    return family is not None and family.exports and OBJECTIVES[situation.plan.params.objective].head != "rtd"


_ADVICE = (
    _Advice(
        lambda situation: situation.plan.memory.total > situation.memory_bytes,
        TOO_LARGE,
    ),
    _Advice(
        lambda situation: situation.seconds > _DAY_SECONDS,
        "The training takes more than a day here: choose a smaller size, fewer steps, a GPU, or several GPUs"
        ' (CLOZELINE_TORCHRUN="--nproc-per-node 8").',
    ),
    _Advice(
        _is_post_norm_on_short_budget,
        "Families that normalize after each layer leave the unigram plateau late. On such a short budget, modernbert,"
        " which normalizes before each layer, learns more.",
    ),
    _Advice(
        lambda situation: _has_high_rate(situation, _HIGH_RATE),
        "This `learning_rate` is high for every size and objective: at size mini, 8e-3 left a masked model on the"
        " unigram plateau, and cost a causal one 0.42 nats per token (300 steps; docs/pretraining.md).",
    ),
    _Advice(
        lambda situation: _is_wide(situation) and _has_high_rate(situation, _HIGH_RATE_IF_WIDE),
        "This `learning_rate` suits the sizes mini and tiny. Wider models want less: ModernBERT was trained at 8e-4 in"
        " size base (Warner et al. 2024).",
    ),
    _Advice(
        _has_few_tokens,
        "The budget has fewer than 20 tokens per parameter of the body (the best ratio for causal models by Hoffmann et"
        " al. 2022): a smaller size may learn as much, and answers faster. Repeating a small corpus helps only for a"
        " few epochs.",
    ),
    _Advice(
        _is_largest_part_vocabulary,
        "Most parameters belong to the vocabulary: a smaller `vocab_size` shrinks the model without slower learning.",
    ),
    _Advice(
        lambda situation: situation.plan.compute.attention > situation.plan.compute.body,
        "At this `max_length`, attention costs more than all weights: check whether most texts are shorter.",
    ),
    _Advice(
        lambda situation: situation.family in _EAGER,
        "DeBERTa is slow for its size, because transformers has no fused attention for it.",
    ),
    _Advice(
        lambda situation: not _exports(situation),
        "This encoder has no ONNX export that predicts tokens: leave it out of `models`.",
    ),
)
