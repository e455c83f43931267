"""plots/pretrain*.csv: points of the curves of a training, a row each."""

from dataclasses import dataclass


@dataclass(frozen=True)
class CurvePoint:
    """What is known after `step` optimizer steps; the loss is the mean over targets since the point before."""

    step: int
    loss: float
    learning_rate: float
    gradient_norm: float
    num_tokens: int


@dataclass(frozen=True)
class Look:
    """The loss on held-out text after `step` optimizer steps, nats per target."""

    step: int
    loss: float


@dataclass(frozen=True)
class SpeedPoint:
    """How fast the training was before `step`; padding is not counted."""

    step: int
    tokens_per_second: float
