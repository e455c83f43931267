"""Cost of serving short texts on CPUs, in proportion to the measured server."""

import math
from dataclasses import dataclass

from clozeline.encoder.architecture import Shape
from on_paper.figures import CLUSTER, PRICES, SERVING
from on_paper.training import MODELS, Model

RATES = (10, 100, 1_000, 10_000, 100_000)
"""Requests per second."""
_MEASURED_CORES = 2
_MEASURED = Shape(6, 384, 12, 1536)
"""all-MiniLM-L6-v2: BERT's layers, with 12 × hidden² weights each."""
_HOURS_A_MONTH = 730


def measured_milliseconds() -> float:
    """Return the core-milliseconds of a request to the measured server."""
    return 1000 * _MEASURED_CORES / SERVING.requests_per_s.value


def milliseconds(model: Model) -> float:
    """Return the core-milliseconds of a request: the measured ones times the ratio of the FLOPs per token.

    A smaller model counts as the measured one: HTTP and tokenization do not shrink with it.
    """
    measured_flops = 2 * _MEASURED.num_hidden_layers * 12 * _MEASURED.hidden_size**2
    return measured_milliseconds() * max(model.body_flops_per_token / measured_flops, 1.0)


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
    return Fleet(rate, milliseconds(model), model.shape.hidden_size)
