"""An encoder of one's own goes through the whole line: trained, fine-tuned, exported, registered, served, tried in
experiments, and measured by GLUE.
"""

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import clozeline as cz
from clozeline.lab.experiment import Experiment, held
from clozeline.lab.sweep import TaskTraining
from clozeline.records.package import read_manifest
from clozeline.registry.publishing import Evidence, Publisher
from clozeline.registry.sources import ModelSource
from clozeline.serving.loading import open_source
from tests.make.apps import running
from tests.make.projects import TINY_EVALUATION, TINY_MODEL, merge, toy_language

PROJECT = Path(__file__).parents[2]
SHRUNK: dict[str, Any] = {
    "tokenize": {"vocab_size": 200},
    "pretrain": {
        **{"model": {**TINY_MODEL, "family": "mine:build"}, "max_length": 32, "batch_tokens": 256},
        **{"steps": 20, "num_threads": 1, "validation": {"every_steps": None}},
    },
    "evaluate": TINY_EVALUATION,
    "finetune_defaults": {"shared": {"max_length": 32, "num_threads": 1, "epochs": 2}},
    "export": {"num_agreement_texts": 8},
}


@dataclass(frozen=True)
class Line:
    """A trained encoder of one's own, and a classifier of topics that was fine-tuned from it and exported."""

    encoder: cz.Run
    topics: cz.Run
    package: Path
    records: list[dict[str, str]]


@pytest.fixture(scope="module")
def line(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Line]:
    """The line with the model of docs/pretraining.md, in whose folder the tests of this file run."""
    page = (PROJECT / "docs" / "pretraining.md").read_text(encoding="utf-8")
    (source,) = re.findall(r"```python\n(from torch.*?)```", page, re.DOTALL)
    root = tmp_path_factory.mktemp("own")
    (root / "mine.py").write_text(source)
    records = toy_language(600)
    config = cz.Config()
    merge(config, SHRUNK)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(root)
        patch.chdir(root)
        for module in ("cluster.ledger", "stages.snapshot"):
            patch.setattr(f"clozeline.{module}.available_cores", lambda: 1)
        run = cz.pretrain([record["text"] for record in records], config)
        topics = cz.finetune(run, records[:240], kind="classification", name="topics", label_field="topic")
        yield Line(run, topics, cz.export(topics), records)
    sys.modules.pop("mine", None)


def test_an_own_encoder_is_trained_fine_tuned_exported_released_and_asked_over_http(
    line: Line, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert cz.evaluate(line.encoder).perplexity < 250
    manifest = read_manifest(line.package)
    assert (manifest.family, len(manifest.ladder) > 0) == ("clozeline-encoder", True), "INT8 was tried"
    asked = line.records[240:300]
    texts = [record["text"] for record in asked]
    ours = [best.label for (best,) in cz.load(line.package).classify(texts)]
    right = sum(label == record["topic"] for label, record in zip(ours, asked, strict=True))
    assert right > 40, "each topic has its own nouns"
    address = f"sqlite:///{tmp_path / 'mlflow.db'}"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
    publisher = Publisher(address)
    publisher.registry.promote(publisher.publish(line.package, "clozeline-topics", Evidence({}, {})))
    monkeypatch.setitem(sys.modules, "mine", None)  # the server has the graph alone
    with running([open_source(ModelSource.parse("models:/clozeline-topics@champion"), None)]) as client:
        answer = client.post("/classify", json={"inputs": texts[:20]})
    assert (answer.status_code, answer.headers["x-model-version"]) == (200, "1"), answer.text
    assert [scores[0]["label"] for scores in answer.json()] == ours[:20]


def test_experiments_train_own_encoders_and_their_tasks(line: Line, tmp_path: Path) -> None:
    folder = line.encoder.folder
    corpus = held(folder, tmp_path, with_encoder=True)
    config = line.topics.config
    config["finetune"]["topics"]["data"] = str(folder / config["finetune"]["topics"]["data"])
    task = TaskTraining.of(config, "topics", corpus, tmp_path)
    scores: list[float] = []
    assert task.run(lambda step, score: scores.append(score)) == max(scores) > 0.6
    assert Experiment.of(config, 1, corpus, tmp_path).run().nats_per_byte < 3
    with (Path.cwd() / "mine.py").open("a") as file:
        file.write("# edited\n")
    assert TaskTraining.of(config, "topics", corpus, tmp_path).folder != task.folder, "of other code"
