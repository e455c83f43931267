"""Our side: the project's own rows, masks and loop. The one file of the benchmarks that knows how they are called.

Shapes: B rows, L longest row, T targets, V vocabulary.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from torch.nn import functional
from transformers import AutoModelForMaskedLM, PreTrainedModel

from clozeline.encoder.model import EncoderModel
from clozeline.evaluation.groups import by_document, in_folds
from clozeline.evaluation.measuring import measure
from clozeline.language import models
from clozeline.language.objectives import OBJECTIVES, Split
from clozeline.language.shards import Rows, TokenShards
from clozeline.params.pretraining import PretrainParams, laid_over
from clozeline.params.project import Params
from clozeline.pretraining import job as pretraining
from clozeline.pretraining.job import Pretraining
from clozeline.training.curves import CurvePoint
from clozeline.training.state import Callback, State
from comparison.stages import params_tree

_NEVER = 10**9
_NUM_FOLDS = 7
# `--mlm_probability` of run_mlm.
MASK_RATE = 0.15
# Seed of the masks of validation: the same for every model, side and training seed.
_MASK_SEED = 0

# BERT 4 × 256 without dropout, for both sides: with BERT's usual 0.1 theirs would do more work on padding.
BERT_TINY = {
    "family": "bert",
    "size": None,
    "hidden_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "intermediate_size": 1024,
    "max_position_embeddings": 512,
    "dropout": 0.0,
    "attention_dropout": 0.0,
    "norm_epsilon": 1e-12,
}


def params_of(changes: Mapping[str, Any]) -> PretrainParams:
    """Return section `pretrain` of params.yaml without validation passes; `changes` override its recipe too."""
    tree = params_tree({})
    recipe = tree["pretrain"]["recipe"]
    quiet = {"validation": {"every_steps": None, "patience": None}, "checkpoint_every_steps": _NEVER}
    for layer in (tree["recipes"][recipe], quiet, changes):
        tree["pretrain"] = laid_over(tree["pretrain"], layer)
    return Params.model_validate({**tree, "recipes": {recipe: {}}}).pretrain


def as_run_mlm(
    model: Mapping[str, Any], steps: int, learning_rate: float, changes: Mapping[str, Any]
) -> PretrainParams:
    """Return params with the masks, optimizer and constant learning rate that run_mlm has, in our terms."""
    recipe = {
        "objective": "mlm",
        "model": model,
        "masking": {"unit": "token", "mask_rate": MASK_RATE, "final_mask_rate": None},
        "optimizer": {"kind": "adamw", "matrix_learning_rate": None, "learning_rate": learning_rate},
        "schedule": {"warmup_fraction": 0.0},
        **for_steps(steps),
    }
    return params_of({**recipe, **changes})


def for_steps(steps: int) -> dict[str, int | None]:
    """Return changes that set the length of a training."""
    return {"steps": steps, "tokens": None, "epochs": None}


def with_changes(params: PretrainParams, changes: Mapping[str, Any]) -> PretrainParams:
    return PretrainParams.model_validate(laid_over(params.model_dump(), changes))


@contextmanager
def prepared(params: PretrainParams, seed: int, tokens: Path, tokenizer: Path) -> Iterator[Pretraining]:
    """A training that is ready to run; its checkpoints are thrown away."""
    with TemporaryDirectory() as work:
        yield pretraining.prepare(params, seed=seed, tokens=tokens, tokenizer=tokenizer, work=Path(work))


@dataclass(frozen=True)
class _AtPoints(Callback):
    do: Callable[[CurvePoint], None]

    def on_point(self, point: CurvePoint) -> None:
        self.do(point)


def tokens_per_second(job: Pretraining, number: int) -> float:
    """Return the real tokens per second of one run over all steps of `job`; steps before its first point are warm-up.

    Args:
        job: training whose curve has at least two points.
        number: number of the round, used as the epoch, so that each round trains on other rows.
    """
    points: list[tuple[float, int]] = []
    job.loop.run(State(epoch=number), _AtPoints(lambda point: points.append((time.perf_counter(), point.num_tokens))))
    (started, tokens_before), (ended, tokens_after) = points[0], points[-1]
    return (tokens_after - tokens_before) / (ended - started)


def stock(model: EncoderModel) -> PreTrainedModel:
    """Return a model of transformers' own class with the weights of `model`."""
    with TemporaryDirectory() as folder:
        model.save(Path(folder))
        return AutoModelForMaskedLM.from_pretrained(folder)  # type: ignore[no-any-return]  # Auto classes have no types


def in_ours(model: PreTrainedModel) -> EncoderModel:
    """Return a model of our class with the weights of `model`."""
    opened, missing = EncoderModel.loaded(model.config, "mlm", model.state_dict())
    if missing:
        raise ValueError(f"weights that ours has and theirs has not: {missing}")
    return opened


@torch.inference_mode()
def losses_of_one_batch(
    model: EncoderModel, theirs: PreTrainedModel, tokens: Path, max_length: int, num_rows: int
) -> tuple[float, float]:
    """Return the mean loss of one batch in nats per target, computed by both sides with the same weights.

    Ours projects the targets alone; theirs all positions, with labels of -100 where there is no target.
    """
    split = Split.open(TokenShards.open(tokens, "train"), max_length)
    rows_B = np.arange(min(num_rows, len(split.rows)))
    batch = OBJECTIVES["mlm"].evaluation_batch(split, split.read(rows_B), _MASK_SEED, 0, _NUM_FOLDS)
    ours = functional.cross_entropy(models.target_logits(model, batch), batch.labels_T)
    labels_BL = torch.full_like(batch.input_ids_BL, -100)
    labels_BL.view(-1)[batch.slot_T] = batch.labels_T
    asked = theirs(batch.input_ids_BL, attention_mask=batch.attention_mask_BL, labels=labels_BL)
    return ours.item(), asked.loss.item()


def first_tokens(tokens: Path, max_length: int, num_tokens: int) -> Split:
    """The rows at the start of the validation split that hold about `num_tokens` tokens."""
    split = Split.open(TokenShards.open(tokens, "validation"), max_length)
    num_rows = int(np.searchsorted(np.cumsum(split.rows.length_R), num_tokens)) + 1
    rows = Rows(split.rows.document_R[:num_rows], split.rows.start_R[:num_rows], split.rows.length_R[:num_rows])
    return replace(split, rows=rows)


def validation_loss(model: EncoderModel, split: Split, batch_tokens: int = 8192) -> float:
    """Return the loss in nats per token over `split`; every token is hidden once, by masks with a seed of their own."""
    was_training = model.training
    model.eval()
    questions = in_folds("mlm", split, seed=_MASK_SEED, num_folds=_NUM_FOLDS, batch_tokens=batch_tokens)
    with torch.inference_mode():
        sums = measure(model, questions, {"all": by_document(1)}, lambda rows: None)["all"]
    model.train(was_training)
    return float(sums.loss_nats_G.sum() / sums.num_targets_G.sum())


@dataclass(frozen=True)
class Passing:
    """Result of a training that ends at a target loss."""

    seconds: float  # seconds until the target loss, or to the end; measuring the loss is left out
    step: int
    loss: float
    passed: bool


class _EnoughError(Exception):
    """Raised by the callback to stop the loop."""


def train_until(job: Pretraining, validation: Callable[[], float], target_loss: float) -> Passing:
    """Train until `look`, called at each point of the curve, returns a loss of at most `target_loss`."""
    looking, seen = 0.0, Passing(0.0, 0, float("inf"), passed=False)
    started = time.perf_counter()

    def at_point(point: CurvePoint) -> None:
        nonlocal looking, seen
        paused = time.perf_counter()
        loss = validation()
        seen = Passing(paused - started - looking, point.step, loss, passed=loss <= target_loss)
        looking += time.perf_counter() - paused
        if seen.passed:
            raise _EnoughError

    with suppress(_EnoughError):
        job.loop.run(State(), _AtPoints(at_point))
    return seen
