"""plots/pretrain*.csv: points of the curves of a training run, one per row."""

from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True)
class CurvePoint:
    """State after `step` optimizer steps. Loss and accuracy are means over targets since the previous point."""

    step: int
    loss: float
    learning_rate: float
    gradient_norm: float
    num_tokens: int
    # Share of targets whose likeliest answer is right, 0-1; None: the training does not count right answers.
    accuracy: float | None = None


class Quality(NamedTuple):
    """Means over targets."""

    loss: float  # nats
    accuracy: float  # share of targets whose likeliest answer is right, 0-1


@dataclass(frozen=True)
class ValidationPass:
    """Loss on held-out text after `step` optimizer steps, in nats per target, and accuracy, 0-1."""

    step: int
    loss: float
    accuracy: float


@dataclass(frozen=True)
class SpeedPoint:
    """Speed of the training before `step`; padding is not counted."""

    step: int
    tokens_per_second: float
