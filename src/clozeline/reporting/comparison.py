"""Several runs side by side: what differs between their params, and their final figures with intervals."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from clozeline.reporting import formats
from clozeline.reporting.run import differences
from clozeline.tracking.past_runs import PastRun

_LOW: Final = "_low"
_ENDINGS: Final[Mapping[str, str]] = MappingProxyType({"value": "", "low": _LOW, "high": "_high"})
_TASK: Final = "finetune/"
_ALONE: Final = "pseudo_"
_NO_PARAMS: Final = "The params of {} are unknown, because MLflow no longer has its dvc.lock."


@dataclass(frozen=True)
class Cell:
    """A figure of one run in words."""

    value: str
    interval: str = ""
    """Its 95 % interval; "" if none was measured."""


@dataclass(frozen=True)
class RunComparison:
    """Runs in the order in which they were named."""

    runs: Sequence[PastRun]

    @property
    def params(self) -> Mapping[str, tuple[str, ...]]:
        """Value in each run of each differing knob, source and file of code."""
        locks = [run.lock for run in self.runs]
        known = [lock for lock in locks if lock is not None]
        return differences(known) if len(known) == len(locks) else {}

    @property
    def notes(self) -> Sequence[str]:
        """Parts of the comparison that are missing, in words."""
        without_lock = [run.name for run in self.runs if run.lock is None]
        return [_NO_PARAMS.format(", ".join(without_lock))] if without_lock else []

    @property
    def final(self) -> Mapping[str, tuple[Cell, ...]]:
        """Figures that have a 95 % interval, by their name in words."""
        return {_words(key): tuple(_cell(run, key) for run in self.runs) for key in self._measured()}

    def record(self) -> dict[str, Any]:
        """Return the comparison for JSON: figures are numbers by the keys of their metric files."""
        return {
            "runs": [
                {
                    "name": run.name,
                    "run_id": run.run_id,
                    "started": run.started.isoformat(),
                    "commit": run.commit,
                }
                for run in self.runs
            ],
            "params": self.params,
            "figures": {key: [_numbers(run, key) for run in self.runs] for key in self._measured()},
            "notes": self.notes,
        }

    def _measured(self) -> list[str]:
        """Return the keys of the figures with an interval: the encoder's first, then those of tasks."""
        ends = {key for run in self.runs for key in run.figures if key.endswith(_LOW)}
        return sorted((key.removesuffix(_LOW) for key in ends), key=_place)


def _numbers(run: PastRun, key: str) -> dict[str, float | None]:
    return {name: run.figures.get(f"{key}{ending}") for name, ending in _ENDINGS.items()}


def _cell(run: PastRun, key: str) -> Cell:
    value = run.figures.get(key)
    return Cell("–") if value is None else Cell(formats.format_of(key)(value), formats.interval(run.figures, key))


def _place(key: str) -> tuple[int, str]:
    """Sort the encoder's figures before those of tasks, and these before all others."""
    return (0 if key.startswith("evaluate.") else 1 if key.startswith(_TASK) else 2), key


def _words(key: str) -> str:
    owner, _, name = key.partition(".")
    owner = "encoder" if owner == "evaluate" else owner.removeprefix(_TASK)
    alone = ", each hidden alone" if name.startswith(_ALONE) else ""
    return f"{owner}: {formats.in_words(name.removeprefix(_ALONE))}{alone}"
