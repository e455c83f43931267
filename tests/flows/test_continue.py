"""Text that grows is learned by the champion itself, from one run to the next, and the same text changes nothing.

The stages up to pre-training are the project's own, and so is the registry; the package and its figures are made up.
"""

import json
import random
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from mlflow import MlflowClient
from prefect.logging import disable_run_logger
from ruamel.yaml import YAML

from clozeline.flows.pipeline import pipeline
from clozeline.flows.release import Release, release
from clozeline.inference import latency
from clozeline.inference.latency import Latency
from clozeline.language import models
from clozeline.orchestration.checks import trained_encoder
from clozeline.params.reading import read_params
from clozeline.pretraining import job as pretraining
from clozeline.records.reading.tokens import documents_path
from clozeline.registry.lineage import trace, verify
from clozeline.registry.start_lock import START_LOCK, StartLock
from clozeline.system.errors import ArtifactError, ClozelineError, ParamsError
from clozeline.system.workspace import Workspace
from clozeline.versions import remote
from clozeline.versions.objects import Objects
from tests.make import projects
from tests.make.models import SENTENCES

pytestmark = pytest.mark.usefixtures("prefect_server")
NAME = "clozeline-encoder"
EVALUATION_AND_EXPORT = {
    "cmd": "python package.py models/encoder dist/encoder validation_text=data/clean/validation.parquet",
    "deps": ["data/clean/validation.parquet", "models/encoder", "package"],
    "outs": ["dist/encoder"],
}
PACKAGE_PY = """
import hashlib, json, pathlib, shutil, sys
model, out = map(pathlib.Path, sys.argv[1:3])
shutil.copytree("package", out, dirs_exist_ok=True)
manifest = json.loads((out / "manifest.json").read_text())
manifest["versions"]["corpus"] = hashlib.sha256((model / "model.safetensors").read_bytes()).hexdigest()
(out / "manifest.json").write_text(json.dumps(manifest))
"""
STAGES = ["params", "snapshot", "preprocess", "tokenize", "pretrain", "evaluate"]
SHRUNK = """
preprocess: {min_characters: 5, validation_fraction: 0.2, source: {kind: files, path: raw.txt, one_document_per: line}}
tokenize: {vocab_size: 64}
recipes:
  continue: {steps: 4, schedule: {warmup_fraction: 0.5}}
pretrain:
  model: {size: null, hidden_size: 16, num_hidden_layers: 1, num_attention_heads: 2, intermediate_size: 16}
  max_length: 16
  batch_tokens: 128
  schedule: {warmup_fraction: 0.2}
  steps: 12
  num_threads: 1
release: {min_unigram_ratio: 0.1}
"""


def make_project(root: Path, package: Path) -> Path:
    root.mkdir()
    projects.copy_project(root)
    (root / ".dvc/config").write_text("[core]\n    no_scm = true\n")
    shutil.copytree(package, root / "package")
    (root / "package.py").write_text(PACKAGE_PY)
    yaml = YAML()
    graph = yaml.load(root / "dvc.yaml")
    own = {name: graph["stages"][name] for name in STAGES[:-1]}
    yaml.dump({"stages": own | {"evaluate": EVALUATION_AND_EXPORT}}, root / "dvc.yaml")
    projects.write_params(root, YAML(typ="safe").load(SHRUNK))
    for name, figures in {"evaluate": projects.ENCODER, "export/encoder": projects.EXPORT}.items():
        (root / "metrics" / name).parent.mkdir(parents=True, exist_ok=True)
        (root / "metrics" / f"{name}.json").write_text(json.dumps(figures))
    write_text(root, num_lines=60)
    return root


def edit(root: Path, changes: Mapping[str, object]) -> None:
    yaml = YAML()
    tree = yaml.load(root / "params.yaml")
    projects.merge(tree, changes)
    yaml.dump(tree, root / "params.yaml")


def write_text(root: Path, num_lines: int) -> None:
    """Write the first lines of an endless text, so that more lines are the same text, grown."""
    draw = random.Random(1)
    words = sorted({word for sentence in SENTENCES for word in sentence.split()})
    (root / "raw.txt").write_text("".join(" ".join(draw.choices(words, k=12)) + "\n" for _ in range(num_lines)))


def lock_of(root: Path) -> StartLock:
    lock = StartLock.of_yaml(root / START_LOCK)
    assert lock
    return lock


@dataclass(frozen=True)
class History:
    """A project that ran on a text, on more text, and on the same text again."""

    root: Path
    first: Path  # models/encoder as it was after the first run
    outcomes: list[dict[str, str]]  # of the stages, in each run
    locks: list[StartLock | None]  # after each run
    released: list[Release]

    @property
    def start(self) -> Path:
        return self.root / "work/start" / lock_of(self.root).key


@pytest.fixture(scope="module")
def history(prefect_server: None, tmp_path_factory: pytest.TempPathFactory, encoder_package: Path) -> History:
    root = make_project(tmp_path_factory.mktemp("continue") / "project", encoder_package)
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", "")
        times = Latency(2.0, 1.0, 20.0, 10.0, batch_texts=32, num_threads=1)
        monkeypatch.setattr(latency, "measure", lambda folder: times)
        history = History(root, root.parent / "first", [], [], [])
        for number in range(3):
            history.outcomes.append({result.name: result.outcome for result in pipeline(root)})
            history.locks.append(StartLock.of_yaml(root / START_LOCK))
            history.released.extend(release(root))
            if number == 0:
                shutil.copytree(root / "models/encoder", history.first)
                edit(root, {"pretrain": {"recipe": "continue"}})
                write_text(root, num_lines=90)
    return history


@pytest.fixture
def project(history: History, tmp_path: Path) -> Path:
    return shutil.copytree(history.root, tmp_path / "project", symlinks=True)


def test_the_champion_is_trained_further_on_new_text_and_released_and_the_same_text_changes_nothing(
    history: History,
) -> None:
    assert history.outcomes == [dict.fromkeys(STAGES, outcome) for outcome in ("executed", "executed", "unchanged")]
    decided = [(made.version, made.outcome) for made in history.released]
    assert decided == [("1", "promoted"), ("2", "promoted"), ("2", "unchanged")]
    is_measured_on_old_text = ["forgetting_low" in {gate.name for gate in made.gates} for made in history.released]
    assert is_measured_on_old_text[:2] == [False, True]
    none, lock, same = history.locks
    assert none is None
    assert lock == same, "though there is a new champion"
    assert lock
    assert (lock.model, lock.version) == (NAME, "1")
    assert lock.architecture == read_params(history.root / "params.yaml").pretrain.architecture


def test_training_reads_old_and_new_text_and_starts_with_weights_tokenizer_and_loss_of_the_champion(
    history: History, tmp_path: Path
) -> None:
    root = history.root
    figures = json.loads((root / "metrics/pretrain.json").read_text())
    old, new = (np.load(documents_path(folder, "train")) for folder in (history.start, root / "data/tokens"))
    assert 0 < np.isin(new, old, invert=True).sum() < len(new)
    assert figures["old_rows"] == pytest.approx(figures["new_rows"], rel=0.2), "the requested share of old text"
    for file in ("model.safetensors", "config.json", "tokenizer.json"):
        assert (history.start / file).read_bytes() == (history.first / file).read_bytes()
    assert (root / "models/tokenizer/tokenizer.json").read_bytes() == (history.first / "tokenizer.json").read_bytes()
    params = read_params(root / "params.yaml").pretrain.model_copy(update={"start": str(history.start)})
    given = {"seed": 1, "tokens": root / "data/tokens", "tokenizer": root / "models/tokenizer"}
    job = pretraining.prepare(params, **given, work=tmp_path, continues=True)
    begins = job.judge.measure()
    job.model.load_state_dict(models.load(history.first, params.model.family).state_dict())
    assert begins == job.judge.measure()
    job.run()
    assert begins != job.judge.measure()


@pytest.mark.parametrize(
    ("change", "refusal", "told"),
    [
        ("a wider model", ParamsError, f"training cannot continue from {NAME} version 1"),
        ("no version", ArtifactError, f"{START_LOCK} names a version that the registry does not have"),
        ("another file", ArtifactError, f"config.json of {NAME} version 1 is not the file in {START_LOCK}"),
        ("no champion", ArtifactError, f"(?s)no champion of {NAME}.*recipe: measured"),
    ],
)
def test_a_deleted_or_different_start_stops_the_run_before_any_work(
    project: Path, change: str, refusal: type[ClozelineError], told: str
) -> None:
    edit(project, {"recipes": {"continue": {"steps": 5}}})
    client = MlflowClient(Workspace(project).defaults()["MLFLOW_TRACKING_URI"])
    if change == "a wider model":
        edit(project, {"pretrain": {"model": {"hidden_size": 32}}})
    elif change == "no version":
        client.delete_model_version(NAME, "1")
    elif change == "another file":
        lock = (project / START_LOCK).read_text()
        (project / START_LOCK).write_text(lock.replace(lock_of(project).files["config.json"], "f" * 64))
    else:
        client.delete_registered_model_alias(NAME, "champion")
        write_text(project, num_lines=120)
    logs = list((project / "work/logs").iterdir())
    with pytest.raises(refusal, match=told):
        pipeline(project)
    assert list((project / "work/logs").iterdir()) == logs


def test_another_machine_verifies_each_nightly_run_from_the_remote(project: Path, tmp_path: Path) -> None:
    (tmp_path / "remote").mkdir()
    remote.add(project, str(tmp_path / "remote"))
    remote.push(project)
    shutil.rmtree(project / ".dvc/cache")
    (project / START_LOCK).unlink()
    for version in ("1", "2"):
        traced = trace(f"models:/{NAME}/{version}", Workspace(project))
        assert START_LOCK in {ancestor.path for ancestor in traced.origin.all()}
        verify(traced, Workspace(project))


def test_only_the_encoder_that_a_package_was_made_from_is_stored_with_it(project: Path) -> None:
    """It is pre-trained again, but not exported: dvc.lock has the new encoder, and the package is still of the old."""
    params = read_params(project / "params.yaml")
    with disable_run_logger():
        assert trained_encoder(Workspace(project), params)
        (project / "models/encoder/config.json").write_text("{}")
        lock = YAML(typ="safe").load(project / "dvc.lock")
        (out,) = (out for out in lock["stages"]["pretrain"]["outs"] if out["path"] == "models/encoder")
        with Objects.open(project) as objects:
            out["md5"] = objects.md5_of(project / "models/encoder")
        YAML().dump(lock, project / "dvc.lock")
        assert trained_encoder(Workspace(project), params) is None
