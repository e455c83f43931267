"""Claim: a kind of task is a row: a toy one goes from params.yaml to an answer over HTTP; no other code knows it."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, cast

import pytest
from ruamel.yaml import YAML

from clozeline.artifacts.export.export_metrics import ExportMetrics
from clozeline.artifacts.export.manifest import read_manifest
from clozeline.artifacts.package_metrics import MetricPaths, PackageMetrics
from clozeline.inference.model_kinds import kind_of
from clozeline.params import ClassificationParams, Params, read_params
from clozeline.params.finetuning.sections import SECTIONS
from clozeline.registry.publishing import Evidence, Publisher
from clozeline.serving.app import create_app
from clozeline.serving.models.catalogue import Catalogue
from clozeline.serving.models.loading import open_source
from clozeline.serving.models.service import Capacity, Service
from clozeline.serving.models.sources import ModelSource
from clozeline.stages import export, finetune
from clozeline.tasks.classification.single_label import SingleLabel
from clozeline.tasks.kinds import KINDS
from clozeline.tasks.task import TaskReport
from tests.clean_text import write_clean_text
from tests.every_kind import text_of, write_records
from tests.serving.conftest import run_app

PROJECT = Path(__file__).parents[2]
NUM_TEXTS = 300


class FirstWordParams(ClassificationParams):
    kind: Literal["first_word"]


class FirstWord(SingleLabel):
    """Whether a text begins late in the alphabet."""

    def test(self) -> TaskReport:
        report = super().test()
        return replace(report, headline=report.headline.model_copy(update={"method": "first word"}))


@pytest.fixture
def params(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Params]:
    """The project's params.yaml with one task, of the new kind."""
    yaml = YAML()
    tree = yaml.load((PROJECT / "params.yaml").read_text(encoding="utf-8"))
    tree["finetune_defaults"]["first_word"] = tree["finetune_defaults"]["classification"]
    sizes = {"max_length": 24, "epochs": 1, "num_threads": 1}
    tree["finetune"] = {"early": {"kind": "first_word", "data": "data.jsonl", **sizes}}
    tree["export"]["models"] = {"early": "finetuned/early"}
    yaml.dump(tree, tmp_path / "params.yaml")
    with monkeypatch.context() as patched:
        patched.setitem(cast(dict[str, Any], SECTIONS), "first_word", FirstWordParams)
        patched.setitem(cast(dict[str, Any], KINDS), "first_word", replace(KINDS["classification"], prepare=FirstWord))
        Params.model_rebuild(force=True)
        yield read_params(tmp_path / "params.yaml")
    Params.model_rebuild(force=True)


@pytest.fixture
def root(tmp_path: Path, params: Params, small_encoder: Path) -> Path:
    """The project, with its model fine-tuned and exported."""
    texts = [text_of(number) for number in range(NUM_TEXTS)]
    records = [{"text": text, "label": "late" if text > "o" else "early"} for text in texts]
    write_records(tmp_path / "data.jsonl", records)
    write_clean_text(tmp_path / "clean.parquet", texts[: NUM_TEXTS // 2])
    (tmp_path / "requirements.lock").write_text("nothing==1")
    finetune.run(
        params.finetune["early"],
        seed=1,
        task="early",
        encoder=small_encoder,
        data=tmp_path / "data.jsonl",
        pretraining_text=tmp_path / "clean.parquet",
        out=tmp_path / "models/finetuned/early",
        metrics=tmp_path / "metrics/finetune/early.json",
        curve=tmp_path / "plots/early_training.csv",
        looks=tmp_path / "plots/early_validation.csv",
        confusion=tmp_path / "plots/early.csv",
        classes=tmp_path / "plots/early_classes.csv",
        examples=tmp_path / "reports/early",
        work=tmp_path / "work",
    )
    export.run(
        params.export.model_copy(update={"ladder": params.export.ladder[:1], "static_ratios": ()}),
        model=tmp_path / "models/finetuned/early",
        texts=tmp_path / "clean.parquet",
        lock=tmp_path / "requirements.lock",
        out=tmp_path / "dist/early",
        metrics=tmp_path / "metrics/export/early.json",
    )
    return tmp_path


def test_a_new_kind_goes_from_params_to_the_server(root: Path) -> None:
    package = root / "dist/early"
    found = PackageMetrics.read(root / "metrics", MetricPaths.of("early", "finetuned/early"))
    assert found.quality.headline.method == "first word"
    (rung,) = ExportMetrics.read(root / "metrics/export/early.json").ladder
    assert (rung.metric, rung.fp32_metric > 0) == ("accuracy", True), (
        "INT8 is held to the labels of the task's own items"
    )

    publisher = Publisher(f"sqlite:///{root / 'mlflow.db'}")
    version = publisher.publish(package, "clozeline-early", Evidence(files={}, tags={}))
    manifest = read_manifest(package)
    publisher.check(version, kind_of(manifest.task).examples(manifest))

    service = Service(Capacity(num_workers=1))
    service.open(Catalogue([open_source(ModelSource.parse(str(package)), None)]))
    with run_app(create_app(service)) as client:
        (labels,) = client.post("/classify", json={"inputs": "the keel"}).json()
        (record,) = client.post("/invocations", json={"inputs": ["the keel"]}).json()["predictions"]
    assert {label["label"] for label in labels} == {"early", "late"} == {one["label"] for one in record["labels"]}
