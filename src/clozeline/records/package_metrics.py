"""Metric files that gates read for a package: their paths and their content.

The files come from DVC, or from the copies stored with a registered version. Gates never read the tracker.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Self

from clozeline.records.evaluation import EncoderMetrics
from clozeline.records.finetune.task_metrics import TaskMetrics
from clozeline.records.package import ExportMetrics

_OF_ENCODERS = Path("evaluate.json")
# Folders in models/ that stage `evaluate` measures: of replaced-token detection, the generator.
_ENCODERS = ("encoder", "encoder/generator")


@dataclass(frozen=True)
class MetricPaths:
    """Paths relative to the folder of metric files."""

    # Quality of the trained model: `evaluate.json` (encoder) or `finetune/<task>.json` (task); None: a published model.
    quality: Path | None
    export: Path

    @classmethod
    def of(cls, package: str, model: str | None) -> Self:
        """Return the paths for `dist/<package>`, exported from `models/<model>`, or imported (None)."""
        export = Path(f"export/{package}.json")
        if model is None:
            return cls(quality=None, export=export)
        quality = _OF_ENCODERS if model in _ENCODERS else Path(f"{model.replace('finetuned', 'finetune')}.json")
        return cls(quality=quality, export=export)


@dataclass(frozen=True)
class PackageMetrics:
    """Metric files of one package."""

    quality: EncoderMetrics | TaskMetrics | None  # None: nothing here was measured on a published model but its package
    export: ExportMetrics

    @classmethod
    def read(cls, folder: Path, paths: MetricPaths) -> Self:
        """Read the files of `paths` below `folder`. Raises what `MetricFile.read` raises."""
        kind = EncoderMetrics if paths.quality == _OF_ENCODERS else TaskMetrics
        quality = kind.read(folder / paths.quality) if paths.quality else None
        return cls(quality=quality, export=ExportMetrics.read(folder / paths.export))
