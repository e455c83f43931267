"""The learning rate as a pure function of the optimizer step."""

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Literal

Decay = Literal["cosine", "linear"]


def learning_rate(
    step: int, *, peak: float, warmup_steps: int, total_steps: int, final_fraction: float, decay: Decay
) -> float:
    """Learning rate of step `step`, counted from 0: linear warm-up to `peak`, then decay to `peak × final_fraction`.

    The first step is not lost to a rate of zero: warm-up gives peak × (step + 1) / warmup_steps.
    """
    if step < warmup_steps:
        return peak * (step + 1) / warmup_steps
    done = (step - warmup_steps) / max(total_steps - 1 - warmup_steps, 1)
    left = _DECAYS[decay](min(done, 1.0))
    return peak * (final_fraction + (1 - final_fraction) * left)


_DECAYS: Mapping[Decay, Callable[[float], float]] = MappingProxyType(
    {
        "cosine": lambda done: (1 + math.cos(math.pi * done)) / 2,  # Loshchilov & Hutter 2017, equation 5, no restart
        "linear": lambda done: 1 - done,
    }
)
