"""Two sides measured in turn on one machine, and the line that reports the comparison."""

import json
import logging
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from comparison.machine import describe_machine

_LOG = logging.getLogger(__name__)

Measure = Callable[[int], float]
"""Number of the round, from 0 → the value measured."""


@dataclass(frozen=True)
class Rounds:
    """Values of each side, in the order of the rounds."""

    ours: tuple[float, ...]
    theirs: tuple[float, ...]

    def ratio(self, *, higher_is_better: bool) -> float | None:
        """Return how many times better our median is; above 1, we are ahead; None if nothing could be measured."""
        if not self.ours or not self.theirs:
            return None
        ours, theirs = median(self.ours), median(self.theirs)
        return ours / theirs if higher_is_better else theirs / ours

    def facts(self, name: str, *, higher_is_better: bool) -> dict[str, Any]:
        """Return the JSON fields of rounds that were measured in another way, called `name`."""
        return {
            f"ratio_{name}": _short(self.ratio(higher_is_better=higher_is_better)),
            f"ours_rounds_{name}": [_short(value) for value in self.ours],
            f"theirs_rounds_{name}": [_short(value) for value in self.theirs],
        }


class BestOf:
    """A side with several set-ups: each is measured in every round, and the best of a round counts."""

    def __init__(self, setups: Mapping[str, Measure], *, higher_is_better: bool) -> None:
        self._setups = setups
        self._best = max if higher_is_better else min
        self.rounds: dict[str, list[float]] = {name: [] for name in setups}
        """Values of each set-up, in the order of the rounds."""

    def __call__(self, number: int) -> float:
        for name, measure in self._setups.items():
            self.rounds[name].append(measure(number))
        return self._best(values[-1] for values in self.rounds.values())

    def facts(self, ending: str = "") -> dict[str, list[float]]:
        """Return the JSON fields of each set-up."""
        return {f"theirs_{name}{ending}": values for name, values in self.rounds.items()}


@dataclass(frozen=True)
class Comparison:
    """One benchmark's result."""

    name: str
    unit: str
    rounds: Rounds
    higher_is_better: bool
    goal: float | None
    """The ratio that the project aims at."""
    num_threads: int
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Further JSON fields: sizes, settings, figures of single rounds."""

    @property
    def ratio(self) -> float | None:
        return self.rounds.ratio(higher_is_better=self.higher_is_better)

    def json_line(self) -> str:
        """Return the last line of a benchmark's output."""
        figures = {
            "name": self.name,
            "ratio": _short(self.ratio),
            "goal": self.goal,
            "ours": _short(median(self.rounds.ours)) if self.rounds.ours else None,
            "theirs": _short(median(self.rounds.theirs)) if self.rounds.theirs else None,
            "unit": self.unit,
            "rounds": len(self.rounds.ours),
            "ours_rounds": [_short(value) for value in self.rounds.ours],
            "theirs_rounds": [_short(value) for value in self.rounds.theirs],
            "machine": describe_machine(self.num_threads),
        }
        return json.dumps(figures | dict(self.facts), allow_nan=False)


def alternate(ours: Measure, theirs: Measure, num_rounds: int, unit: str) -> Rounds:
    """Measure both sides in every round, each first in turn, so that a drift of the machine affects both equally."""
    sides = {"ours": ours, "theirs": theirs}
    measured: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(num_rounds):
        for name in list(sides)[:: 1 if number % 2 == 0 else -1]:
            measured[name].append(sides[name](number))
            _LOG.info("round %d of %d, %s: %.6g %s", number + 1, num_rounds, name, measured[name][-1], unit)
    return Rounds(tuple(measured["ours"]), tuple(measured["theirs"]))


def report_progress() -> None:
    """Send the log of a benchmark to stderr, because stdout is for the result line."""
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    for noisy in ("httpx", "filelock", "fsspec", "datasets"):
        logging.getLogger(noisy).setLevel(logging.WARNING)


def finish(comparison: Comparison) -> None:
    """Write the line."""
    sys.stdout.write(comparison.json_line() + "\n")
    sys.stdout.flush()


def _short(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.5g}")
