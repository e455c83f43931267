"""How well masked tokens are named, over a whole split: every token a target exactly once.

The tokens are dealt into k folds by who they are; pass k hides fold k alone. Sums are taken over tokens, so
the figures do not depend on how rows were batched (a mean of batch means does).

A token that the tokenizer did not know ([UNK]) is no target: to name it is no skill. But its bytes are text, and a
tokenizer that leaves the hard words unknown must not look better for it. So in `nats_per_byte` each is charged as if
its text, taken to be as long as a token of this split is on average, were spelled in bytes that are all equally
likely: ln 256 nats for each byte. The other figures are of the targets alone.

Shapes: T targets of a batch, V vocabulary.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from typing import Self

import torch
from torch import Tensor
from torch.nn import functional
from transformers import PreTrainedModel

from clozeline.model import language_model
from clozeline.model.batches import Split
from clozeline.model.objectives import OBJECTIVES, TargetBatch
from clozeline.tokens.rows import sorted_plan

_TOP = 5
_NATS_PER_UNKNOWN_BYTE = math.log(256)


@dataclass(frozen=True)
class Sums:
    """What is added up over targets."""

    loss_nats: float = 0.0
    num_targets: int = 0
    num_top1: int = 0
    num_top5: int = 0

    def __add__(self, other: Self) -> "Sums":
        return Sums(*(getattr(self, field.name) + getattr(other, field.name) for field in fields(Sums)))


@dataclass(frozen=True)
class Figures:
    """Figures of one model on one split; a nat is log base e."""

    loss_nats_per_token: float
    perplexity: float
    """exp of the summed loss over the number of targets; not the mean of batch means."""
    top1: float
    top5: float
    nats_per_byte: float
    """Loss of all targets and the charge for unknown tokens, over the UTF-8 bytes of the raw text: the one to compare
    across tokenizers."""
    text_bytes: int
    target_tokens: int
    unknown_tokens: int
    """No model could be asked to name them."""
    validation_tokens: int
    """Targets and unknown tokens."""


def measure(
    model: PreTrainedModel,
    split: Split,
    *,
    seed: int,
    num_folds: int,
    batch_tokens: int,
    advance: Callable[[int], None],
) -> Figures:
    """Judge `model` on every token of `split`; `advance` is told of each row done."""
    sums = Sums()
    for batch, num_rows in _all_batches(model, split, seed, num_folds, batch_tokens):
        sums = sums + _judge(language_model.target_logits(model, batch), batch.labels_T)
        advance(num_rows)
    loss = sums.loss_nats / sums.num_targets
    shards = split.shards
    unknown_tokens = shards.num_tokens - sums.num_targets
    return Figures(
        loss_nats_per_token=loss,
        perplexity=math.exp(loss),
        top1=sums.num_top1 / sums.num_targets,
        top5=sums.num_top5 / sums.num_targets,
        nats_per_byte=sums.loss_nats / shards.text_bytes + _NATS_PER_UNKNOWN_BYTE * unknown_tokens / shards.num_tokens,
        text_bytes=shards.text_bytes,
        target_tokens=sums.num_targets,
        unknown_tokens=unknown_tokens,
        validation_tokens=shards.num_tokens,
    )


def num_passes(model: PreTrainedModel, num_folds: int) -> int:
    """A causal model sees nothing of what it is asked, so one pass asks for everything."""
    return 1 if language_model.objective_of(model) == "clm" else num_folds


def _all_batches(
    model: PreTrainedModel, split: Split, seed: int, num_folds: int, batch_tokens: int
) -> Iterator[tuple[TargetBatch, int]]:
    judging = OBJECTIVES[language_model.objective_of(model)].judging
    folds = num_passes(model, num_folds)
    plan = sorted_plan(split.rows.length_R, batch_tokens)
    for index in range(plan.num_batches):
        tokens = split.read(plan.rows_of(index))
        for fold in range(folds):
            batch = judging(split, tokens, seed, fold, folds)
            if len(batch.labels_T):
                yield batch, len(tokens.length_B)


@torch.inference_mode()
def _judge(logits_TV: Tensor, labels_T: Tensor) -> Sums:
    """Sums in float64: a million float32 addends would lose the last digits, and with them repeatability."""
    loss_T = functional.cross_entropy(logits_TV, labels_T, reduction="none")
    top_TK = logits_TV.topk(min(_TOP, logits_TV.shape[1]), dim=1).indices
    hit_TK = top_TK == labels_T[:, None]
    return Sums(
        loss_nats=loss_T.double().sum().item(),
        num_targets=len(labels_T),
        num_top1=int(hit_TK[:, 0].sum()),
        num_top5=int(hit_TK.any(dim=1).sum()),
    )
