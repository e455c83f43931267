"""The metric files that decide about a release: what is read of them, and where they are.

They are DVC's, or copies that were stored with a registered version: gates never read what a tracker says.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from clozeline.artifacts.unbeaten import unbeaten
from clozeline.errors import ArtifactError
from clozeline.inference.manifest import Precision

Record = TypeVar("Record", bound="_Metrics")


class _Metrics(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a metric file.

        Raises:
            ArtifactError: it is not there, or lacks a figure.
        """
        try:
            return cls.model_validate_json(path.read_bytes())
        except FileNotFoundError as error:
            raise ArtifactError(
                f"there is no metric file {path}",
                given="no such file",
                expected="a file that a stage of dvc.yaml writes",
                do="run the stages first (`clozeline run` or `dvc repro`)",
            ) from error
        except ValidationError as error:
            fault = error.errors(include_url=False)[0]
            raise ArtifactError(
                f"{path} cannot be used",
                given=f"{'.'.join(map(str, fault['loc']))}: {str(fault['input'])[:80]}",
                expected=fault["msg"],
                do="run the stage that writes it again (`dvc repro`)",
            ) from error


class EncoderMetrics(_Metrics):
    """metrics/evaluate.json"""

    loss_nats_per_token: float
    perplexity: float
    nats_per_byte: float
    """With a charge for the text of unknown tokens: see evaluation/figures.py."""
    text_bytes: int
    target_tokens: int
    top1: float
    top5: float
    unigram_perplexity: float
    unigram_top1: float
    unigram_top5: float
    contaminated_fraction: float | None = None
    """None in the files of versions that were registered before it was counted."""


_CORRELATIONS = frozenset({"matthews", "spearman"})


class HeadlineMetrics(_Metrics):
    """Higher is better, and 1 is perfect."""

    metric: str
    value: float
    low: float
    high: float
    baseline: str
    baseline_value: float
    trivial: str
    trivial_value: float
    method: str = "fine-tuned encoder"
    """Files of before there was another do not say it."""

    @property
    def is_share(self) -> bool:
        """Told in per cent; a correlation is none of anything."""
        return self.metric not in _CORRELATIONS


class TaskMetrics(_Metrics):
    """metrics/finetune/<task>.json: the figure that a task of any kind is compared by."""

    headline: HeadlineMetrics
    contaminated_fraction: float | None = None
    """None of a kind of task whose test has no texts of its own, and of versions from before it was counted."""
    only_answer: str | None = None
    """What the model says to every test item, where it says the same to all."""

    @property
    def faults(self) -> tuple[str, ...]:
        """What speaks against the model, in words."""
        behind = (f"no better than {name}" for name, _ in unbeaten(self.headline))
        only = () if self.only_answer is None else (f"says `{self.only_answer}` to every item of the test set",)
        return (*behind, *only)

    @model_validator(mode="before")
    @classmethod
    def _told_without_a_headline(cls, tree: Any) -> Any:
        """Registered versions keep the files they came with: the first ones were classifiers, and named no headline."""
        match tree:
            case {"headline": _}:
                return tree
            case {"accuracy": value, "baseline_tfidf_accuracy": baseline_value, "majority_accuracy": trivial_value}:
                share = {"low": tree.get("accuracy_low", value), "high": tree.get("accuracy_high", value)}
                values = {"value": value, "baseline_value": baseline_value, "trivial_value": trivial_value}
                names = {"metric": "accuracy", "baseline": "TF-IDF + logistic regression", "trivial": "largest class"}
                return {"headline": {**names, **values, **share}}
        return tree


class ExportMetrics(_Metrics):
    """metrics/export/<model>.json"""

    fp32_size_bytes: int
    served: Precision = "int8"
    """fp32 if no INT8 scheme passed: there is no INT8 graph then, and the next two are None."""
    int8_size_bytes: int | None = None
    int8_agreement: float | None = None

    @model_validator(mode="after")
    def _int8_has_its_figures(self) -> Self:
        if self.served == "int8" and (self.int8_size_bytes is None or self.int8_agreement is None):
            raise ValueError("`int8_size_bytes` and `int8_agreement` of the graph that is served")
        return self


@dataclass(frozen=True)
class MetricPaths:
    """Names below the folder of the metric files."""

    quality: Path
    """Of the model itself: `evaluate.json` of an encoder, `finetune/<task>.json` of a task's model."""
    export: Path

    @classmethod
    def of(cls, package: str, model: str) -> Self:
        """Of `dist/<package>`, exported from `models/<model>`."""
        quality = (
            Path("evaluate.json") if model == "encoder" else Path(f"{model.replace('finetuned', 'finetune')}.json")
        )
        return cls(quality=quality, export=Path(f"export/{package}.json"))


@dataclass(frozen=True)
class Figures:
    """Of one package."""

    quality: EncoderMetrics | TaskMetrics
    export: ExportMetrics

    @classmethod
    def read(cls, folder: Path, paths: MetricPaths) -> Self:
        """Read the files of `paths` below `folder`; raises as `_Metrics.read`."""
        kind = EncoderMetrics if paths.quality.name == "evaluate.json" else TaskMetrics
        return cls(quality=kind.read(folder / paths.quality), export=ExportMetrics.read(folder / paths.export))
