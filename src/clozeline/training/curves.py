"""plots/pretrain*.csv: points of the curves of a training run, one per row."""

from dataclasses import dataclass


@dataclass(frozen=True)
class CurvePoint:
    """State after `step` optimizer steps. The loss is the mean over targets since the previous point."""

    step: int
    loss: float
    learning_rate: float
    gradient_norm: float
    num_tokens: int


@dataclass(frozen=True)
class Look:
    """Loss on held-out text after `step` optimizer steps, in nats per target."""

    step: int
    loss: float


@dataclass(frozen=True)
class SpeedPoint:
    """Speed of the training before `step`; padding is not counted."""

    step: int
    tokens_per_second: float
