"""Advice before a training: a recommended encoder for each need (choices.yaml), and what follows from a plan's figures.

Both are tables, with a row for each need and for each piece of advice.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ruamel.yaml import YAML

from clozeline.encoder.families import FAMILIES
from clozeline.params.model import NOT_EXPORTED
from clozeline.params.pretraining import GENERATORS
from clozeline.planning import costs, timing

_DAY_SECONDS = 86_400
_SHORT_BUDGET_TOKENS = 100_000_000
_ENOUGH_TOKENS_PER_PARAMETER = 20
# Learning rates of AdamW above which a model learns less; the second is for models of `_WIDE` and more.
_HIGH_RATE, _HIGH_RATE_IF_WIDE = 6e-3, 2e-3
_WIDE = 512
_EAGER = {"deberta-v2", "deberta-v3"}


@dataclass(frozen=True)
class Situation:
    """The facts that advice is based on."""

    plan: costs.TrainingPlan
    speed: timing.Speed | None
    memory_bytes: int  # memory of the device that will train

    @property
    def seconds(self) -> float:
        """Estimated seconds for the whole budget; 0 if nothing was timed."""
        return self.plan.budget_tokens / self.speed.tokens_per_second if self.speed else 0.0


def advise(situation: Situation) -> list[str]:
    """Return every applicable piece of advice, in the order of the table."""
    plan, params, budget = situation.plan, situation.plan.params, situation.plan.budget_tokens
    family, count = FAMILIES.get(plan.family), plan.count
    is_wide = plan.shape is not None and plan.shape.hidden_size >= _WIDE
    is_trained = params.steps != 0
    adamw_rate = params.optimizer.learning_rate if is_trained and "adamw" in params.optimizer.kind else 0.0
    is_post_norm = is_trained and family is not None and not family.is_pre_norm
    could_be_smaller = params.start is None and params.model.size != "mini"
    exports = family is not None and plan.family not in NOT_EXPORTED and params.objective not in GENERATORS
    table = {
        costs.TOO_LARGE: plan.memory.total > situation.memory_bytes,
        "The training takes more than a day here: choose a smaller size, fewer steps, a GPU, or several GPUs"
        ' (CLOZELINE_TORCHRUN="--nproc-per-node 8").': situation.seconds > _DAY_SECONDS,
        "Families that normalize after each layer leave the unigram plateau late. On such a short budget, modernbert,"
        " which normalizes before each layer, learns more.": is_post_norm and budget < _SHORT_BUDGET_TOKENS,
        "This `learning_rate` is high for every size and objective: at size mini, 8e-3 left a masked model on the"
        " unigram plateau, and cost a causal one 0.42 nats per token (300 steps; docs/pretraining.md).": (
            adamw_rate > _HIGH_RATE
        ),
        "This `learning_rate` suits the sizes mini and tiny. Wider models want less: ModernBERT was trained at 8e-4 in"
        " size base (Warner et al. 2024).": is_wide and adamw_rate > _HIGH_RATE_IF_WIDE,
        "The budget has fewer than 20 tokens per parameter of the body (the best ratio for causal models by Hoffmann et"
        " al. 2022): a smaller size may learn as much, and answers faster. Repeating a small corpus helps only for a"
        " few epochs.": could_be_smaller and budget < _ENOUGH_TOKENS_PER_PARAMETER * count.body,
        "Most parameters belong to the vocabulary: a smaller `vocab_size` shrinks the model without slower learning.": (
            count.embedding > 2 * count.body
        ),
        "At this `max_length`, attention costs more than all weights: check whether most texts are shorter.": (
            plan.compute.attention > plan.compute.body
        ),
        "DeBERTa is slow for its size, because transformers has no fused attention for it.": plan.family in _EAGER,
        "This encoder has no ONNX export that predicts tokens: leave it out of `models`.": not exports,
    }
    return [advice for advice, applies in table.items() if applies]


_OF_START = "that of the start"
# Keys of the tokenizer, of the starting model that it belongs to, and its objective; all come from the same need.
_TOKENIZER = {f"tokenize.{key}" for key in ("algorithm", "existing", "vocab_size", "lowercase")} | {
    "pretrain.start",
    "pretrain.recipe",
    "pretrain.objective",
}
# Keys that suit a model trained from scratch; a starting model has its own shape, and the rates of its recipe.
_OF_FRESH_MODEL = tuple(
    f"pretrain.{name}" for name in ("model.family", "model.size", "optimizer.", "masking.", "schedule.", "steps")
)


@dataclass(frozen=True)
class Recommendation:
    """Recommendation for one need, with its reason."""

    tokenizer: str
    why: str
    params: Mapping[str, Any]  # dotted key of params.yaml → value
    family: str = _OF_START
    size: str = _OF_START
    recipe: str = "domain-adaptation"


@cache
def choices() -> Mapping[str, Recommendation]:
    """Return the recommendations by need, the values of `clozeline plan --for`."""
    rows = YAML(typ="safe").load(Path(__file__).with_name("choices.yaml"))
    return MappingProxyType({need: _recommendation(**row) for need, row in rows.items()})


def _recommendation(*, start: str | None = None, **row: Any) -> Recommendation:
    """Return a row; `start` is an encoder that others pre-trained on text of a domain, to be trained further."""
    if start is None:
        return Recommendation(**row)
    tokenizer = {"tokenize.algorithm": "existing", "tokenize.existing": start}
    training = {"pretrain.start": start, "pretrain.recipe": "domain-adaptation", "pretrain.objective": "mlm"}
    return Recommendation(params=tokenizer | training, **row)


@dataclass(frozen=True)
class Combined:
    """Merged choices for several needs; the need that is named first wins."""

    params: Mapping[str, Any]
    conflicts: Mapping[str, tuple[str, ...]]  # need → keys that it would have set differently


def combine(needs: Sequence[str]) -> Combined:
    """Merge the choices for `needs`, keys of `choices`."""
    params: dict[str, Any] = {}
    conflicts = {}
    for need in dict.fromkeys(needs):
        wanted = choices()[need].params
        lost = {key for key, value in wanted.items() if params.get(key, value) != value}
        if lost & _TOKENIZER:
            lost |= wanted.keys() & _TOKENIZER
        if "pretrain.start" in params:
            lost |= {key for key in wanted if key.startswith(_OF_FRESH_MODEL)}
        if lost:
            conflicts[need] = tuple(key for key in wanted if key in lost)
        params |= {key: value for key, value in wanted.items() if key not in lost}
    return Combined(dict(sorted(params.items())), conflicts)


def as_tree(params: Mapping[str, Any]) -> dict[str, Any]:
    """Return a nested mapping from dotted keys."""
    tree: dict[str, Any] = {}
    for key, value in params.items():
        *sections, name = key.split(".")
        inner = tree
        for section in sections:
            inner = inner.setdefault(section, {})
        inner[name] = value
    return tree
