"""What a quality figure was measured on: figures of two versions say which is better only where it is the same.

It is read from the dvc.lock that each version was registered with, which has the command of each stage, and the hash
of every file that it read.
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
"""What the command of that stage calls the text that it measures on."""
_ENCODER_RULES: Final = ("pretrain.objective", "evaluate.num_folds", "evaluate.max_length")


@dataclass(frozen=True)
class MeasuredOn:
    """The text of a measurement, and the rules that it was done by."""

    text: str
    """Path below the project."""
    md5: str | None
    """Of the text; None if the lock does not know it."""
    rules: Mapping[str, str]
    """Knobs by their dotted names."""

    @classmethod
    def of(cls, lock: Lock, paths: MetricPaths) -> Self:
        """Of the figures in `paths.quality` when the stages were as `lock` says."""
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
        """What forbids to compare a figure of this with one of `champion`, in words; nothing if they compare."""
        found = []
        if self.md5 is None or self.md5 != champion.md5:
            found.append(f"{self.text or 'the text'} has md5 {self.md5}, the champion's {champion.md5}")
        for name in sorted({*self.rules, *champion.rules}):
            ours, theirs = self.rules.get(name), champion.rules.get(name)
            if ours != theirs:
                found.append(f"{name} is {ours}, the champion's {theirs}")
        return found


def _argument(stage: LockedStage | None, name: str) -> str:
    """What a stage's command was given as `name`; nothing if there is no such stage or argument."""
    if stage is None:
        return ""
    words = shlex.split(stage.cmd if isinstance(stage.cmd, str) else " ".join(stage.cmd))
    return next((word.partition("=")[2] for word in words if word.startswith(f"{name}=")), "")


def _of_task(section: str, knobs: Mapping[str, str]) -> dict[str, str]:
    """What decides a task's figures, wherever it is written: in the task, or in the defaults under it; and its `data`.

    A knob that is null says as little as one that is not there.
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
