"""What a quality figure was measured on. Figures of two versions are comparable only if it is the same for both.

It is read from the dvc.lock stored with each version, which holds the command of each stage and the hash of every file
that the stage read.
"""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Self

from clozeline.artifacts.lock import Lock, LockedStage
from clozeline.artifacts.package_metrics import MetricPaths
from clozeline.params.finetuning import SECTIONS, FinetuneParams

_ENCODER_STAGE: Final = "evaluate"
_ENCODER_TEXT: Final = "validation_text"
"""Argument of that stage's command that names the measured text."""
_ENCODER_RULES: Final = ("pretrain.objective", "evaluate.num_folds", "evaluate.max_length")


@dataclass(frozen=True)
class MeasuredOn:
    """Text of a measurement and the rules of the measurement."""

    text: str
    """Path of the text, relative to the project."""
    md5: str | None
    """MD5 of the text; None if the lock does not list it."""
    rules: Mapping[str, str]
    """Values of the params that decide the figure, by dotted name."""

    @classmethod
    def of(cls, lock: Lock, paths: MetricPaths) -> Self:
        """Return what the figures in `paths.quality` were measured on, according to `lock`."""
        knobs = {key: value for stage in lock.stages.values() for key, value in stage.flat_params().items()}
        if paths.quality.parent.name == "finetune":
            knobs = _of_task(f"finetune.{paths.quality.stem}", knobs)
            text = knobs.get("data", "")
            names = tuple(name for name in knobs if name != "data")
        else:
            text = _argument(lock.stages.get(_ENCODER_STAGE), _ENCODER_TEXT)
            names = _ENCODER_RULES
        md5 = next((dep.md5 for stage in lock.stages.values() for dep in stage.deps if dep.path == text), None)
        return cls(text=text, md5=md5, rules={name: knobs[name] for name in names if name in knobs})

    def differences(self, champion: Self) -> list[str]:
        """Return the reasons, in words, why the two figures are not comparable; [] if they are."""
        found = []
        if self.md5 is None or self.md5 != champion.md5:
            found.append(f"{self.text or 'the text'} has md5 {self.md5}, the champion's {champion.md5}")
        for name in sorted({*self.rules, *champion.rules}):
            ours, theirs = self.rules.get(name), champion.rules.get(name)
            if ours != theirs:
                found.append(f"{name} is {ours}, the champion's {theirs}")
        return found


def _argument(stage: LockedStage | None, name: str) -> str:
    """Return the value of `name=…` in the command of a stage; "" if the stage or the argument is missing."""
    if stage is None:
        return ""
    words = shlex.split(stage.cmd if isinstance(stage.cmd, str) else " ".join(stage.cmd))
    return next((word.partition("=")[2] for word in words if word.startswith(f"{name}=")), "")


def _of_task(section: str, knobs: Mapping[str, str]) -> dict[str, str]:
    """Return the params that decide a task's figures, from the task or its defaults, and its `data`.

    A null param counts as a missing one.
    """
    kind = knobs.get(f"{section}.kind", "")
    measured_by = SECTIONS.get(kind, FinetuneParams).measured_by
    found = {"seed": knobs["seed"]} if "seed" in knobs else {}
    for place in ("finetune_defaults.shared", f"finetune_defaults.{kind}", section):
        inner = {key.removeprefix(f"{place}."): value for key, value in knobs.items() if key.startswith(f"{place}.")}
        rules = {key: value for key, value in inner.items() if key.split(".")[0] in measured_by}
        found |= {f"{section}.{key}": value for key, value in rules.items()}
    return {name: value for name, value in found.items() if value != "None"} | {
        "data": knobs.get(f"{section}.data", "")
    }
