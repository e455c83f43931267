"""Cost of pre-training on GPUs: the cost models of `clozeline plan`, a published peak and an assumed utilization."""

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch

from clozeline.encoder.architecture import Shape
from clozeline.params.pretraining import PretrainParams
from clozeline.params.reading import read_params
from clozeline.planning.costs import Compute, ParameterCount, StepMemory, outline
from clozeline.training.micro_batches import Precision
from on_paper.figures import PRICES, TRAINING

PROJECT = Path(__file__).parents[3]
VOCAB_SIZE = 50_368
"""Vocabulary of ModernBERT and Ettin."""
GPUS_PER_NODE = 8
_OVERLAPPED = 2 / 3
"""Share of a step, its backward pass, during which gradients travel."""
_SUMMED_BYTES = 4
"""Gradients are summed in fp32."""
_CHECKPOINT_NUMBERS = 3
"""Weights and the two moments of Adam, in fp32."""


@dataclass(frozen=True)
class Model:
    """A size of Ettin (Weller et al. 2025), and the share of the GPU's peak that its training is assumed to reach."""

    shape: Shape
    utilization: float

    @property
    def count(self) -> ParameterCount:
        return _counted(self.shape)[0]

    @property
    def flops_per_token(self) -> float:
        return _counted(self.shape)[1].training

    @property
    def body_flops_per_token(self) -> float:
        """FLOPs per token of a forward pass without head and attention: what serving a short text costs."""
        return _counted(self.shape)[1].body

    @property
    def step_bytes(self) -> int:
        """Memory of a GPU in a step."""
        return _counted(self.shape)[2].total

    @property
    def checkpoint_bytes(self) -> int:
        return _CHECKPOINT_NUMBERS * self.count.fp32_bytes


MODELS = {
    "17 M": Model(Shape(7, 256, 4, 384), 0.15),
    "68 M": Model(Shape(19, 512, 8, 768), 0.2),
    "150 M": Model(Shape(22, 768, 12, 1152), 0.3),
    "400 M": Model(Shape(28, 1024, 16, 2624), 0.35),
}


@cache
def cpu_flops() -> float:
    """Return the FLOPs per second of the two cores: the measured tokens per second times the FLOPs of that model."""
    params = read_params(PROJECT / "params.yaml").pretrain.model
    bert = outline(
        params.model_copy(update={"family": "bert", "size": None, **vars(Shape(4, 256, 4, 1024))}), "mlm", 30_522
    )
    return TRAINING.cpu_tokens_per_s.value * Compute.of(bert, length=128, target_share=0.15).training


@cache
def _counted(shape: Shape) -> tuple[ParameterCount, Compute, StepMemory]:
    params = _params(shape)
    model, share = outline(params.model, "mlm", VOCAB_SIZE), TRAINING.target_share.value
    return (
        ParameterCount.of(model),
        Compute.of(model, length=params.max_length, target_share=share),
        StepMemory.of(model, params, Precision.of("bf16", torch.device("cuda")), share),
    )


def _params(shape: Shape) -> PretrainParams:
    params = read_params(PROJECT / "params.yaml").pretrain
    model = params.model.model_copy(update={"family": "modernbert", "size": None, **vars(shape)})
    rows = {
        "max_length": int(TRAINING.row_tokens.value),
        "batch_tokens": int(TRAINING.step_tokens.value),
        "micro_batch_tokens": int(TRAINING.micro_batch_tokens.value),
    }
    return params.model_copy(update={"model": model, **rows})


def step_seconds(model: Model, num_gpus: int) -> tuple[float, float]:
    """Return the seconds in which a step computes, and those in which it only waits for the gradients of others."""
    computing = TRAINING.step_tokens.value * model.flops_per_token / (num_gpus * _flops(model))
    speed = TRAINING.inside_gb_per_s if num_gpus <= GPUS_PER_NODE else TRAINING.between_gb_per_s
    summing = 2 * (1 - 1 / num_gpus) * _SUMMED_BYTES * model.count.total / (speed.value * 1e9)  # ring all-reduce
    return computing, max(summing - _OVERLAPPED * computing, 0.0)


def seconds(model: Model, num_tokens: float, num_gpus: int) -> float:
    return num_tokens / TRAINING.step_tokens.value * sum(step_seconds(model, num_gpus))


def dollars(model: Model, num_tokens: float, num_gpus: int) -> float:
    return seconds(model, num_tokens, num_gpus) / 3600 * num_gpus * PRICES.gpu_hour.value


def cpu_seconds(model: Model, num_tokens: float) -> float:
    """Return the seconds on the two cores that were measured."""
    return num_tokens * model.flops_per_token / cpu_flops()


def rows_per_second(model: Model) -> float:
    """Return the rows that a node of GPUs reads per second, each from a random place of the tokens."""
    return GPUS_PER_NODE * _flops(model) / model.flops_per_token / TRAINING.row_tokens.value


def page_reads_per_second(model: Model) -> float:
    """Return the random reads of a node of GPUs, for text that is far larger than memory."""
    return rows_per_second(model) * TRAINING.row_reads.value


def readers(model: Model, read_us: float) -> float:
    """Return how many processes have to build batches for one GPU, if reading is all they do.

    A page of a mapped file is read when it is touched, so a process has one read under way.
    """
    return page_reads_per_second(model) / GPUS_PER_NODE * read_us / 1e6


def _flops(model: Model) -> float:
    return TRAINING.peak_flops.value * model.utilization
