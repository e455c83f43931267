"""Learning rate as a fraction of its peak: a pure function of the optimizer step."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Self

from clozeline.params import ScheduleParams


@dataclass(frozen=True)
class Schedule:
    """Linear warm-up to the peak, an optional plateau, then a decay to `final_fraction` at the last step.

    Micro-batches and devices divide a step and do not count as steps, so the curve does not depend on them.
    """

    params: ScheduleParams
    total_steps: int

    @classmethod
    def linear_to_zero(cls, warmup_fraction: float, total_steps: int) -> Self:
        """Return the schedule of fine-tuning (Devlin et al. 2018, appendix A.2)."""
        linear = ScheduleParams(
            decay="linear",
            warmup_fraction=warmup_fraction,
            initial_fraction=0.0,
            final_fraction=0.0,
            power=1.0,
            decay_fraction=0.5,
        )
        return cls(linear, total_steps)

    @cached_property
    def warmup_steps(self) -> int:
        return round(self.params.warmup_fraction * self.total_steps)

    def fraction(self, step: int) -> float:
        """Return the fraction of the peak (0-1) at `step`, counted from 0; steps past the last are like the last.

        The first step of warm-up is above `initial_fraction`, so that no step is lost to a rate of zero. Warm-up
        therefore reaches the peak in its last step, and the decay starts at the peak: two steps are at the peak.
        """
        if step < self.warmup_steps:
            done = (step + 1) / self.warmup_steps
            return self.params.initial_fraction + (1 - self.params.initial_fraction) * done
        decay = DECAYS[self.params.decay]
        start = decay.start(self)
        done = (step - start) / max(self.total_steps - 1 - start, 1)
        left = decay.left(min(max(done, 0.0), 1.0), self.params.power)
        return self.params.final_fraction + (1 - self.params.final_fraction) * left


@dataclass(frozen=True)
class Decay:
    """Shape of the decay after warm-up."""

    left: Callable[[float, float], float]
    """Maps the share of the decay that is done (0-1) and `power` to the share of the height that is left (1-0)."""
    start: Callable[[Schedule], int]
    """Returns the last step at the peak."""


def _after_warmup(schedule: Schedule) -> int:
    return schedule.warmup_steps


def _decay_start(schedule: Schedule) -> int:
    start = schedule.total_steps - 1 - round(schedule.params.decay_fraction * schedule.total_steps)
    return max(start, schedule.warmup_steps)


DECAYS: Mapping[str, Decay] = MappingProxyType(
    {
        # Loshchilov & Hutter 2017, equation 5, no restart
        "cosine": Decay(lambda done, power: (1 + math.cos(math.pi * done)) / 2, _after_warmup),
        "linear": Decay(lambda done, power: 1 - done, _after_warmup),
        "polynomial": Decay(lambda done, power: (1 - done) ** power, _after_warmup),
        "constant": Decay(lambda done, power: 1.0, _after_warmup),
        # Hägele et al. 2024, section 3: "1-sqrt" is their best cooldown
        "wsd": Decay(lambda done, power: 1 - math.sqrt(done), _decay_start),
    }
)
"""Keyed by `decay` in params.yaml."""
