"""The metric files that decide about a package: where they are, and what is in them.

They are DVC's, or copies that were stored with a registered version: gates never read what a tracker says.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Self

from clozeline.artifacts.encoder_metrics import EncoderMetrics
from clozeline.artifacts.export_metrics import ExportMetrics
from clozeline.artifacts.task_metrics import TaskMetrics

_OF_ENCODERS = Path("evaluate.json")


@dataclass(frozen=True)
class MetricPaths:
    """Names below the folder of the metric files."""

    quality: Path
    """Of the model itself: `evaluate.json` of an encoder, `finetune/<task>.json` of a task's model."""
    export: Path

    @classmethod
    def of(cls, package: str, model: str) -> Self:
        """Of `dist/<package>`, exported from `models/<model>`."""
        is_encoder = model == "encoder"
        quality = _OF_ENCODERS if is_encoder else Path(f"{model.replace('finetuned', 'finetune')}.json")
        return cls(quality=quality, export=Path(f"export/{package}.json"))


@dataclass(frozen=True)
class PackageMetrics:
    """Of one package."""

    quality: EncoderMetrics | TaskMetrics
    export: ExportMetrics

    @classmethod
    def read(cls, folder: Path, paths: MetricPaths) -> Self:
        """Read the files of `paths` below `folder`; raises as `MetricFile.read`."""
        kind = EncoderMetrics if paths.quality == _OF_ENCODERS else TaskMetrics
        return cls(quality=kind.read(folder / paths.quality), export=ExportMetrics.read(folder / paths.export))
