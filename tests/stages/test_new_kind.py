"""Claim: a kind of task and a kind of model are rows, and no other code knows them.

Toy ones go from params.yaml through fine-tuning, export, the exam for INT8 and the registry to an answer over HTTP.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import pytest
from ruamel.yaml import YAML

from clozeline.exporting.exams import Exam, Sample
from clozeline.inference.open_model import Dialogue, OpenModel, Question, Records, alone
from clozeline.inference.package import MODEL_KINDS
from clozeline.params.project import Params
from clozeline.params.reading import read_params
from clozeline.params.tasks import SECTIONS, ClassificationParams
from clozeline.records.package import read_manifest
from clozeline.registry.models import CHAMPION
from clozeline.registry.publishing import Evidence, Publisher, example_texts
from clozeline.registry.sources import ModelSource
from clozeline.serving.loading import open_source
from clozeline.tasks.classification.texts import SingleLabel
from clozeline.tasks.kinds import KINDS
from tests.make.apps import running
from tests.make.models import run_export
from tests.make.tasks import fine_tune, text_of, write_rows
from tests.make.texts import write_clean_text

PROJECT = Path(__file__).parents[2]
KIND_NAME = "lateness"


class FirstWordParams(ClassificationParams):
    kind: Literal["first_word"]


class FirstWord(SingleLabel):
    """Toy task: does a text begin late in the alphabet? The saved model is of the toy kind, named in config.json."""

    def save(self, out: Path) -> None:
        super().save(out)
        config = json.loads((out / "config.json").read_text())
        (out / "config.json").write_text(json.dumps(config | {"architectures": ["ToyForLateness"]}))


class Lateness(OpenModel):
    """Toy model that answers how much likelier "late" is than "early", as one number for each text."""

    def lateness(self, texts: Sequence[str], *, truncate: bool = False) -> Question[float]:
        tokenized = self.tokenize(texts, truncate=truncate)
        return Question(tokenized, "logits", lambda position, logits_C: float(logits_C[1] - logits_C[0]))

    def usual(self, texts: Sequence[str]) -> Question[float]:
        return self.lateness(texts, truncate=True)

    def recording(self, given: Sequence[str], *, top_k: int, truncate: bool) -> Dialogue[Records]:
        numbers = yield from alone(lambda: self.lateness(given, truncate=truncate))
        return [{"lateness": number} for number in numbers]


def exam(model: Lateness, sample: Sample) -> Exam:
    """Return an exam on whether the larger logit is that of the held-out label."""
    return Exam(
        texts=model.tokenize([item.text for item in sample.held_out], truncate=True),
        text_A=np.arange(len(sample.held_out)),
        true_A=np.array([item.right[0] == "late" for item in sample.held_out], dtype=np.int64),
        metric="share of sides",
    )


KIND = replace(
    MODEL_KINDS["text-classification"],
    **{"architectures": ("ForLateness",), "exam": f"{__name__}:exam", "model": Lateness, "labels": None},
    says="how late a text begins",
)


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
        patched.setitem(cast(dict[str, Any], MODEL_KINDS), KIND_NAME, KIND)
        Params.model_rebuild(force=True)
        yield read_params(tmp_path / "params.yaml")
    Params.model_rebuild(force=True)


def test_a_new_kind_goes_from_params_to_the_server(
    params: Params, small_encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = [text_of(number) for number in range(300)]
    rows = [{"text": text, "label": "late" if text > "o" else "early"} for text in texts]
    data = write_rows(tmp_path / "data.jsonl", rows)
    trained = fine_tune(params.finetune["early"], tmp_path / "trained", encoder=small_encoder, data=data, seed=1)
    write_clean_text(tmp_path / "clean.parquet", texts[:150])
    package = run_export(
        trained / "model", tmp_path / "clean.parquet", tmp_path, ladder=params.export.ladder[:1], static_ratios=()
    )
    manifest = read_manifest(package)
    (rung,) = manifest.ladder
    assert (rung.metric, rung.fp32_metric > 0) == ("share of sides", True), "the exam of the row judges INT8"
    assert manifest.task == KIND_NAME

    address = f"sqlite:///{tmp_path / 'mlflow.db'}"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
    publisher = Publisher(address)
    version = publisher.publish(package, "clozeline-early", Evidence(files={}, tags={}))
    publisher.check(version, example_texts(manifest))
    publisher.registry.promote(version)
    with running([open_source(ModelSource.parse(f"models:/clozeline-early@{CHAMPION}"), None)]) as client:
        answer = client.post("/invocations", json={"inputs": ["the keel", "a keel"]})
    assert answer.headers["x-model-version"] == version.version
    late, early = (record["lateness"] for record in answer.json()["predictions"])
    assert np.isfinite([late, early]).all()
    assert late != early
