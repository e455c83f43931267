"""What a plan's figures say to do: a row for each piece of advice."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from clozeline.encoder.families import FAMILIES
from clozeline.planning.memory import TOO_LARGE
from clozeline.planning.plan import Plan
from clozeline.planning.speed import Speed

_DAY_SECONDS = 86_400
_SHORT_BUDGET_TOKENS = 100_000_000
_ENOUGH_TOKENS_PER_PARAMETER = 20
_EAGER = {"deberta-v2", "deberta-v3"}


@dataclass(frozen=True)
class Situation:
    """What advice is given on."""

    plan: Plan
    speed: Speed | None
    memory_bytes: int
    """Of the device that will train."""

    @property
    def family(self) -> str:
        return self.plan.family

    @property
    def seconds(self) -> float:
        """Of the whole budget; 0 if nothing was timed."""
        return self.plan.budget_tokens / self.speed.tokens_per_second if self.speed else 0.0


@dataclass(frozen=True)
class _Advice:
    holds: Callable[[Situation], bool]
    text: str


def advise(situation: Situation) -> Iterator[str]:
    """Everything that holds, in the order of the table."""
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


def _exports(situation: Situation) -> bool:
    family = FAMILIES.get(situation.family)
    return family is not None and family.exports and situation.plan.params.objective == "mlm"


_ADVICE = (
    _Advice(
        lambda situation: situation.plan.memory.total > situation.memory_bytes,
        TOO_LARGE,
    ),
    _Advice(
        lambda situation: situation.seconds > _DAY_SECONDS,
        "More than a day here: choose a smaller size, fewer steps, a GPU, or several"
        ' (CLOZELINE_TORCHRUN="--nproc-per-node 8").',
    ),
    _Advice(
        _is_post_norm_on_short_budget,
        "Families that normalize after each layer leave the unigram plateau late; on a budget this short modernbert,"
        " which normalizes before, learns more.",
    ),
    _Advice(
        _has_few_tokens,
        "Fewer than 20 tokens for each parameter of the body (Hoffmann et al. 2022 found that ratio best for causal"
        " models): a smaller size may learn as much, and answers faster. Repeating a small corpus helps only for a few"
        " epochs.",
    ),
    _Advice(
        _is_largest_part_vocabulary,
        "Most parameters are the vocabulary's: a smaller `tokenize.vocab_size` makes the model smaller, not slower to"
        " learn.",
    ),
    _Advice(
        lambda situation: situation.plan.compute.attention > situation.plan.compute.body,
        "Attention costs more than all weights at this `max_length`: most texts may be shorter.",
    ),
    _Advice(
        lambda situation: situation.family in _EAGER,
        "transformers has no fused attention for DeBERTa: it is slow for its size.",
    ),
    _Advice(
        lambda situation: not _exports(situation),
        "This one is not exported to ONNX as an encoder that fills masks: leave it out of `export.models`.",
    ),
)
