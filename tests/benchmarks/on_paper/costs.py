"""Costs of text, of pre-training and of serving, in proportion to the measured runs.

Those of pre-training on GPUs are from the cost models of `clozeline plan`, a published peak and an assumed utilization.
"""

import math
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from ruamel.yaml import YAML

from clozeline.encoder.architecture import Shape
from clozeline.params.pretraining import PretrainParams
from clozeline.params.reading import read_params
from clozeline.planning.costs import Compute, ParameterCount, StepMemory, outline
from clozeline.training.micro_batches import Precision


@dataclass(frozen=True)
class Figure:
    value: float
    unit: str
    kind: str  # `measured`, `published` or `assumed`
    what: str
    source: str

    def __str__(self) -> str:
        return f"{self.value:,.10g} {self.unit}" if self.value < 1e9 else f"{self.value:.3g} {self.unit}"


_TREE = YAML(typ="safe").load(Path(__file__).with_name("figures.yaml"))


def _table(name: str) -> SimpleNamespace:
    rows = {key: (*facts, _TREE["sources"].get(source, source)) for key, (*facts, source) in _TREE[name].items()}
    return SimpleNamespace(**{key: Figure(*row) for key, row in rows.items()})


CORPUS, CLUSTER, TRAINING, SERVING, PRICES = map(_table, ("corpus", "cluster", "training", "serving", "prices"))


# Bytes of raw text.
SIZES = {"10 GB": 1e10, "1 TB": 1e12, "10 TB": 1e13}
_MEASURED_BYTES = 79e6


@dataclass(frozen=True)
class CorpusCost:
    raw_bytes: float

    @property
    def tokens(self) -> float:
        return self.raw_bytes / CORPUS.bytes_per_token.value

    @property
    def core_seconds(self) -> float:
        return self.raw_bytes / 1e6 * CORPUS.core_seconds_per_mb.value

    def seconds(self, num_cores: int) -> float:
        """Return the time on one machine whose cores are all busy, as partitions make possible."""
        return self.core_seconds / num_cores

    def seconds_today(self, num_cores: int) -> float:
        """Return the time on one machine today, where the main process does its share alone (Amdahl 1967)."""
        alone = CORPUS.alone_share.value
        return self.core_seconds * (alone + (1 - alone) / num_cores)

    def seconds_on(self, num_machines: int, cores_each: int) -> float:
        """Return the time on equal machines that exchange what does not stay at home over their networks."""
        moved = self.exchanged_bytes * (1 - 1 / num_machines) / num_machines
        network = 2 * moved / (CLUSTER.machine_gb_per_s.value * 1e9)  # to the shared storage, and back
        return self.seconds(num_machines * cores_each) + network + CLUSTER.start_seconds.value * (num_machines > 1)

    @property
    def memory_bytes(self) -> float:
        """Memory on two cores: the measured growth for each factor of ten since the measured text."""
        tens = math.log10(self.raw_bytes / _MEASURED_BYTES)
        return CORPUS.memory_gb.value * 1e9 * CORPUS.memory_growth.value**tens

    @property
    def exchanged_bytes(self) -> float:
        return self.raw_bytes * CORPUS.exchanged.value

    @property
    def dollars(self) -> tuple[float, float]:
        """What the cores cost, and the disk at its peak for a month."""
        disk = self.raw_bytes * CORPUS.peak_disk.value / 1e12 * PRICES.disk_tb_month.value
        return self.core_seconds / 3600 * PRICES.core_hour.value, disk

    @property
    def num_partitions(self) -> int:
        return max(round(self.raw_bytes / 1e9 / CLUSTER.partition_gb.value), 1)

    @property
    def num_pieces(self) -> int:
        """Reads of the exchange: each partition reads its piece of the output of every earlier task."""
        return self.num_partitions**2

    @property
    def piece_seconds(self) -> float:
        """Time of those reads if they go to one prefix of an object store."""
        return self.num_pieces / CLUSTER.requests_per_s.value


def bytes_with_slow_pieces(num_cores: int) -> float:
    """Return the raw bytes from which reading the pieces takes longer than all other work on `num_cores`.

    The pieces grow with the square of the text, the work with the text.
    """
    one = CorpusCost(1e12)
    return one.raw_bytes * one.seconds(num_cores) / one.piece_seconds


def bytes_worth_a_second_machine(saved_seconds: float, cores_each: int, mb_per_s: float | None = None) -> float:
    """Return the raw bytes from which two machines of `cores_each` save `saved_seconds` over one of them.

    `mb_per_s`: speed of two cores, if it is not the measured one.
    """
    byte = CorpusCost(1.0)
    one = byte.seconds(cores_each) if mb_per_s is None else 2 / (mb_per_s * 1e6 * cores_each)
    network = byte.seconds_on(2, cores_each) - byte.seconds(2 * cores_each) - CLUSTER.start_seconds.value
    return (saved_seconds + CLUSTER.start_seconds.value) / (one / 2 - network)


PROJECT = Path(__file__).parents[3]
# Vocabulary of ModernBERT and Ettin.
VOCAB_SIZE = 50_368
GPUS_PER_NODE = 8
# Share of a step, its backward pass, during which gradients travel.
_OVERLAPPED = 2 / 3
# Gradients are summed in fp32.
_SUMMED_BYTES = 4
# Weights and the two moments of Adam, in fp32.
_CHECKPOINT_NUMBERS = 3


@dataclass(frozen=True)
class Model:
    """A size of Ettin (Weller et al. 2025), and the share of the GPU's peak that its training is assumed to reach."""

    shape: Shape
    utilization: float

    @cached_property
    def _params(self) -> PretrainParams:
        params = read_params(PROJECT / "params.yaml").pretrain
        model = params.model.model_copy(update={"family": "modernbert", "size": None, **vars(self.shape)})
        names = {"max_length": "row_tokens", "batch_tokens": "step_tokens", "micro_batch_tokens": "micro_batch_tokens"}
        rows = {name: int(getattr(TRAINING, figure).value) for name, figure in names.items()}
        return params.model_copy(update={"model": model, **rows})

    @cached_property
    def _outline(self) -> Any:
        return outline(self._params.model, "mlm", VOCAB_SIZE)

    @cached_property
    def count(self) -> ParameterCount:
        return ParameterCount.of(self._outline)

    @cached_property
    def flops(self) -> Compute:
        """FLOPs per token: serving a short text costs those of `body`, a forward pass without head and attention."""
        return Compute.of(self._outline, length=self._params.max_length, target_share=TRAINING.target_share.value)

    @property
    def step_bytes(self) -> int:
        """Memory of a GPU in a step."""
        precision = Precision.of("bf16", torch.device("cuda"))
        return StepMemory.of(self._outline, self._params, precision, TRAINING.target_share.value).total

    @property
    def checkpoint_bytes(self) -> int:
        return _CHECKPOINT_NUMBERS * self.count.fp32_bytes

    @property
    def flops_per_second(self) -> float:
        """Speed of a GPU that trains it."""
        return float(TRAINING.peak_flops.value * self.utilization)


MODELS = {
    "17 M": Model(Shape(7, 256, 4, 384), 0.15),
    "68 M": Model(Shape(19, 512, 8, 768), 0.2),
    "150 M": Model(Shape(22, 768, 12, 1152), 0.3),
    "400 M": Model(Shape(28, 1024, 16, 2624), 0.35),
}


@cache
def cpu_flops() -> float:
    """Return the FLOPs per second of the two cores: the measured tokens per second times the FLOPs of that model."""
    measured = {"family": "bert", "size": None, **vars(Shape(4, 256, 4, 1024))}
    params = read_params(PROJECT / "params.yaml").pretrain.model
    bert = outline(params.model_copy(update=measured), "mlm", 30_522)
    return TRAINING.cpu_tokens_per_s.value * Compute.of(bert, length=128, target_share=0.15).training


def step_seconds(model: Model, num_gpus: int) -> tuple[float, float]:
    """Return the seconds in which a step computes, and those in which it only waits for the gradients of others."""
    computing = TRAINING.step_tokens.value * model.flops.training / (num_gpus * model.flops_per_second)
    speed = TRAINING.inside_gb_per_s if num_gpus <= GPUS_PER_NODE else TRAINING.between_gb_per_s
    summing = 2 * (1 - 1 / num_gpus) * _SUMMED_BYTES * model.count.total / (speed.value * 1e9)  # ring all-reduce
    return computing, max(summing - _OVERLAPPED * computing, 0.0)


def training_seconds(model: Model, num_tokens: float, num_gpus: int) -> float:
    return num_tokens / TRAINING.step_tokens.value * sum(step_seconds(model, num_gpus))


def training_dollars(model: Model, num_tokens: float, num_gpus: int) -> float:
    return training_seconds(model, num_tokens, num_gpus) / 3600 * num_gpus * PRICES.gpu_hour.value


def cpu_seconds(model: Model, num_tokens: float) -> float:
    """Return the seconds on the two cores that were measured."""
    return num_tokens * model.flops.training / cpu_flops()


def rows_per_second(model: Model) -> float:
    """Return the rows that a node of GPUs reads per second, each from a random place of the tokens."""
    return GPUS_PER_NODE * model.flops_per_second / model.flops.training / TRAINING.row_tokens.value


def readers(model: Model, read_us: float) -> float:
    """Return how many processes have to build batches for one GPU, if text is far larger than memory and
    reading is all they do.

    A page of a mapped file is read when it is touched, so a process has one read under way.
    """
    reads_per_second = rows_per_second(model) * TRAINING.row_reads.value / GPUS_PER_NODE
    return reads_per_second * read_us / 1e6


# Requests per second.
RATES = (10, 100, 1_000, 10_000, 100_000)
_MEASURED_CORES = 2
# all-MiniLM-L6-v2: BERT's layers, with 12 × hidden² weights each.
_MEASURED = Shape(6, 384, 12, 1536)
_HOURS_A_MONTH = 730


def measured_milliseconds() -> float:
    """Return the core-milliseconds of a request to the measured server."""
    return 1000 * _MEASURED_CORES / SERVING.requests_per_s.value


def request_milliseconds(model: Model) -> float:
    """Return the core-milliseconds of a request: the measured ones times the ratio of the FLOPs per token.

    A smaller model counts as the measured one: HTTP and tokenization do not shrink with it.
    """
    measured_flops = 2 * _MEASURED.num_hidden_layers * 12 * _MEASURED.hidden_size**2
    return measured_milliseconds() * max(model.flops.body / measured_flops, 1.0)


def rate_of(num_cores: int) -> float:
    """Return the requests per second to plan for on a machine with the measured model."""
    return num_cores * 1000 / measured_milliseconds() * SERVING.load.value


@dataclass(frozen=True)
class Fleet:
    """The machines that answer `rate` requests per second, each of `milliseconds` on a core."""

    rate: float
    milliseconds: float
    hidden_size: int

    @property
    def num_cores(self) -> int:
        return math.ceil(self.rate * self.milliseconds / 1000 / SERVING.load.value)

    @property
    def num_machines(self) -> int:
        return math.ceil(self.num_cores / CLUSTER.machine_cores.value)

    @property
    def network_bytes_per_s(self) -> float:
        return self.rate * self.hidden_size * SERVING.number_bytes.value

    @property
    def dollars_a_month(self) -> float:
        return self.num_cores * PRICES.core_hour.value * _HOURS_A_MONTH


def measured_fleet(rate: float) -> Fleet:
    return Fleet(rate, measured_milliseconds(), _MEASURED.hidden_size)


def fleet(name: str, rate: float) -> Fleet:
    model = MODELS[name]
    return Fleet(rate, request_milliseconds(model), model.shape.hidden_size)
