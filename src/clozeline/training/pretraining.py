"""Masked language modelling as a training: which batches, which loss, which budget."""

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

import clozeline
from clozeline.model import language_model
from clozeline.model.batches import Split
from clozeline.model.families import TokenIds
from clozeline.model.objectives import OBJECTIVES, Batches, TargetBatch
from clozeline.params import PretrainParams
from clozeline.tokens.masking import Masker
from clozeline.tokens.rows import NUM_BOUNDARY_TOKENS, cursor, shuffled_plan
from clozeline.tokens.shards import INFO_NAME, TokenShards
from clozeline.training.checkpoint import Checkpoints, fingerprint
from clozeline.training.loop import Batch, Loop
from clozeline.training.optimizers import build_optimizer
from clozeline.training.schedule import learning_rate

_CODE = ("model", "tokens", "training")
"""Rooms whose code decides the result."""


@dataclass(frozen=True)
class Pretraining:
    """A pre-training that is ready to run."""

    model: nn.Module
    loop: Loop[TargetBatch]
    num_parameters: int
    num_rows: int


def prepare(params: PretrainParams, *, seed: int, tokens: Path, work: Path) -> Pretraining:
    """Open the shards, build the model, and find the checkpoints of exactly this run.

    Raises:
        ArtifactError: the shards are damaged.
        ParamsError: the model's family is unknown.
    """
    torch.set_num_threads(params.num_threads or len(os.sched_getaffinity(0)))
    torch.manual_seed(seed)
    split = Split.open(TokenShards.open(tokens, "train"), params.max_length)
    boundary = split.boundary
    ids = TokenIds(split.vocabulary.size, boundary.pad_id, boundary.cls_id, boundary.sep_id)
    model = language_model.build(params.model, params.objective, ids, seed)
    masker = Masker.create(params.masking, split.vocabulary, seed)
    objective = OBJECTIVES[params.objective]
    total_steps = params.steps or steps_of(params.tokens or 0, split, params.batch_tokens, seed)
    loop = Loop(
        model=model,
        optimizer=build_optimizer(model, params.optimizer),
        batches_from=lambda epoch, index: _batches(objective, split, masker, params.batch_tokens, seed, epoch, index),
        loss_sum=lambda batch: loss_sum(model, batch),
        learning_rate_at=lambda step: learning_rate(
            step,
            peak=params.optimizer.learning_rate,
            warmup_steps=params.schedule.warmup_steps,
            total_steps=total_steps,
            final_fraction=params.schedule.final_fraction,
            decay=params.schedule.decay,
        ),
        total_steps=total_steps,
        clip_norm=params.optimizer.clip_norm,
        log_every_steps=params.log_every_steps,
        checkpoint_every_steps=params.checkpoint_every_steps,
        checkpoints=Checkpoints.of(work, _fingerprint(params, seed, tokens), params.num_checkpoints),
    )
    num_parameters = sum(parameter.numel() for parameter in model.parameters())
    return Pretraining(model, loop, num_parameters, len(split.rows))


def loss_sum(model: nn.Module, batch: TargetBatch) -> Tensor:
    """Cross-entropy of the targets, nats, summed: the mean is taken once, over all targets of a step."""
    logits_TV = language_model.target_logits(model, batch)
    return functional.cross_entropy(logits_TV, batch.labels_T, reduction="sum")


def steps_of(num_tokens: int, split: Split, batch_tokens: int, seed: int) -> int:
    """Optimizer steps that read about `num_tokens` real tokens, by the mean fill of the first epoch's batches."""
    length_R = split.rows.length_R
    num_batches = shuffled_plan(length_R, batch_tokens, seed, epoch=0).num_batches
    tokens_per_epoch = int(length_R.sum()) + NUM_BOUNDARY_TOKENS * len(length_R)
    return max(math.ceil(num_tokens * num_batches / tokens_per_epoch), 1)


def _batches(
    objective: Batches, split: Split, masker: Masker, batch_tokens: int, seed: int, epoch: int, index: int
) -> Iterator[Batch[TargetBatch]]:
    for turn in cursor(split.rows.length_R, batch_tokens, seed, epoch, index):
        inputs = objective.training(split, masker, split.read(turn.rows_B), turn.epoch, 0.0)
        yield Batch(turn.epoch, turn.batch, inputs, split.num_tokens(turn.rows_B), len(inputs.labels_T))


def _fingerprint(params: PretrainParams, seed: int, tokens: Path) -> str:
    package = Path(clozeline.__file__).parent
    code = [file for room in _CODE for file in sorted((package / room).glob("*.py"))]
    facts = {
        "params": params.model_dump(exclude={"checkpoint_every_steps", "num_checkpoints"}),
        "seed": seed,
        "torch": torch.__version__,
        "num_threads": torch.get_num_threads(),
    }
    return fingerprint(facts, [tokens / INFO_NAME, *code])
