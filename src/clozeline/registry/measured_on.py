"""What a quality figure was measured on: figures of two versions say which is better only where it is the same.

It is read from the dvc.lock that each version was registered with, which has the hash of every file that was read.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Self

from clozeline.lineage.lock import Lock
from clozeline.registry.figures import MetricPaths

_ENCODER_TEXT: Final = "data/clean/validation.parquet"
_ENCODER_RULES: Final = ("pretrain.objective", "evaluate.num_folds", "evaluate.max_length")
_TASK_RULES: Final = (
    "kind",
    "text_field",
    "label_field",
    "max_classes",
    "max_per_class",
    "validation_fraction",
    "test_fraction",
)
"""With the seed, they decide which texts of a task's data are its test part."""


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
        text: str = _ENCODER_TEXT
        names: tuple[str, ...] = _ENCODER_RULES
        if paths.quality.parent.name == "finetune":
            section = f"finetune.{paths.quality.stem}"
            text = knobs.get(f"{section}.data", "")
            names = ("seed", *(f"{section}.{name}" for name in _TASK_RULES))
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
