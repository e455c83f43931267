"""Text that grows is learned by the champion itself, from one run to the next, and the same text changes nothing.

The stages up to pre-training are the project's own, and so is the registry; the package and its figures are made up.
"""

import json
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from mlflow import MlflowClient
from prefect.logging import disable_run_logger
from ruamel.yaml import YAML

from clozeline.flows.pipeline import StageResult, pipeline
from clozeline.flows.release import release
from clozeline.inference import latency
from clozeline.inference.latency import Latency
from clozeline.language import models
from clozeline.orchestration.checks import trained_encoder
from clozeline.params.reading import read_params
from clozeline.pretraining import job as pretraining
from clozeline.records.reading.tokens import documents_path
from clozeline.records.snapshot import FORGOTTEN_LOCK
from clozeline.registry.lineage import trace, verify
from clozeline.registry.start_lock import START_LOCK, StartLock
from clozeline.system.errors import ArtifactError, ParamsError
from clozeline.system.workspace import Workspace
from clozeline.versions import remote
from clozeline.versions.objects import Objects
from tests.make.models import SENTENCES
from tests.make.params import write_params
from tests.make.projects import ENCODER, EXPORT, merge

pytestmark = pytest.mark.usefixtures("prefect_server")
CHECKOUT = Path(__file__).parents[2]
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
OWN_STAGES = ["params", "snapshot", "preprocess", "tokenize", "pretrain"]
STAGES = [*OWN_STAGES, "evaluate"]
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
    (root / ".dvc").mkdir(parents=True)
    (root / ".dvc" / "config").write_text(f"[core]\n    no_scm = true\n    site_cache_dir = {root.parent / 'site'}\n")
    (root / ".dvcignore").write_text("work\n")
    shutil.copytree(CHECKOUT / "src", root / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    for lock in (START_LOCK, FORGOTTEN_LOCK):
        shutil.copy(CHECKOUT / lock, root)
    shutil.copytree(package, root / "package")
    (root / "package.py").write_text(PACKAGE_PY)
    yaml = YAML()
    graph = yaml.load((CHECKOUT / "dvc.yaml").read_text(encoding="utf-8"))
    stages = {name: graph["stages"][name] for name in OWN_STAGES} | {"evaluate": EVALUATION_AND_EXPORT}
    with (root / "dvc.yaml").open("w", encoding="utf-8") as file:
        yaml.dump({"stages": stages}, file)
    write_params(root / "params.yaml")
    edit(root, YAML(typ="safe").load(SHRUNK))
    for name, figures in {"evaluate": ENCODER, "export/encoder": EXPORT}.items():
        (root / "metrics" / name).parent.mkdir(parents=True, exist_ok=True)
        (root / "metrics" / f"{name}.json").write_text(json.dumps(figures))
    write_text(root, num_lines=60)
    return root


def edit(root: Path, changes: dict[str, object]) -> None:
    yaml = YAML()
    tree = yaml.load((root / "params.yaml").read_text(encoding="utf-8"))
    merge(tree, changes)
    with (root / "params.yaml").open("w", encoding="utf-8") as file:
        yaml.dump(tree, file)


def write_text(root: Path, num_lines: int) -> None:
    """Write the first lines of an endless text, so that more lines are the same text, grown."""
    draw = random.Random(1)
    words = sorted({word for sentence in SENTENCES for word in sentence.split()})
    (root / "raw.txt").write_text("".join(" ".join(draw.choices(words, k=12)) + "\n" for _ in range(num_lines)))


def outcomes(results: list[StageResult]) -> dict[str, str]:
    return {result.name: result.outcome for result in results}


def lock_of(root: Path) -> StartLock | None:
    return StartLock.of_yaml(root / START_LOCK)


def start_in(root: Path) -> Path:
    lock = lock_of(root)
    assert lock
    return root / "work" / "start" / lock.key


@dataclass(frozen=True)
class History:
    """A project that ran on a text, on more text, and on the same text again."""

    root: Path
    first: Path
    """models/encoder as it was after the first run."""
    runs: list[dict[str, str]]
    locks: list[StartLock | None]
    released: list[tuple[str, str]]
    measured_on_old_text: list[bool]


@pytest.fixture(scope="module")
def history(prefect_server: None, tmp_path_factory: pytest.TempPathFactory, encoder_package: Path) -> History:
    root = make_project(tmp_path_factory.mktemp("continue") / "project", encoder_package)
    found = History(root, root.parent / "first", [], [], [], [])

    def night() -> None:
        found.runs.append(outcomes(pipeline(root)))
        found.locks.append(lock_of(root))
        (made,) = release(root)
        found.released.append((made.version, made.outcome))
        found.measured_on_old_text.append("forgetting_low" in {gate.name for gate in made.gates})

    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=":")
        monkeypatch.setenv("MLFLOW_TRACKING_URI", "")
        times = Latency(2.0, 1.0, 20.0, 10.0, batch_texts=32, num_threads=1)
        monkeypatch.setattr(latency, "measure", lambda folder: times)
        night()
        shutil.copytree(root / "models" / "encoder", found.first)
        edit(root, {"pretrain": {"recipe": "continue"}})
        write_text(root, num_lines=90)
        night()
        night()
    return found


@pytest.fixture
def project(history: History, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=":")
    return shutil.copytree(history.root, tmp_path / "project", symlinks=True)


def test_the_champion_is_trained_further_on_new_text_and_released(history: History) -> None:
    assert history.runs[:2] == [dict.fromkeys(STAGES, "executed")] * 2
    assert history.locks[0] is None
    lock = history.locks[1]
    assert lock
    assert (lock.model, lock.version) == (NAME, "1")
    assert lock.architecture == read_params(history.root / "params.yaml").pretrain.architecture
    assert history.released[:2] == [("1", "promoted"), ("2", "promoted")]
    assert history.measured_on_old_text[:2] == [False, True]


def test_a_run_on_the_same_text_changes_nothing_even_with_a_new_champion(history: History) -> None:
    assert history.runs[2] == dict.fromkeys(STAGES, "unchanged")
    assert history.locks[2] == history.locks[1]
    assert history.released[2] == ("2", "unchanged")


def test_training_starts_with_the_weights_and_the_tokenizer_of_the_champion(history: History) -> None:
    start = start_in(history.root)
    for file in ("model.safetensors", "config.json", "tokenizer.json"):
        assert (start / file).read_bytes() == (history.first / file).read_bytes()
    tokenizer = (history.root / "models" / "tokenizer" / "tokenizer.json").read_bytes()
    assert tokenizer == (history.first / "tokenizer.json").read_bytes()


def test_the_loss_at_the_first_step_is_that_of_the_champion(history: History, tmp_path: Path) -> None:
    root = history.root
    params = read_params(root / "params.yaml").pretrain.model_copy(update={"start": str(start_in(root))})
    given = {"seed": 1, "tokens": root / "data" / "tokens", "tokenizer": root / "models" / "tokenizer"}
    job = pretraining.prepare(params, **given, work=tmp_path, continues=True)
    begins = job.judge.measure()
    job.model.load_state_dict(models.load(history.first, params.model.family).state_dict())
    assert begins == job.judge.measure()
    job.run()
    assert begins != job.judge.measure()


def test_training_reads_all_new_text_and_the_requested_share_of_old_text(history: History) -> None:
    figures = json.loads((history.root / "metrics" / "pretrain.json").read_text())
    old = np.load(documents_path(start_in(history.root), "train"))
    new = np.load(documents_path(history.root / "data" / "tokens", "train"))
    assert 0 < np.isin(new, old, invert=True).sum() < len(new)
    assert figures["old_rows"] == pytest.approx(figures["new_rows"], rel=0.2)


def test_dvc_repro_uses_the_start_lock_with_the_same_result(project: Path) -> None:
    before = (project / "dvc.lock").read_bytes()
    for folder in ("work/start", "data/tokens", ".dvc/cache/runs"):
        shutil.rmtree(project / folder)
    assert "Running stage 'tokenize'" in repro(project, "--force", "--single-item", "tokenize")
    assert start_in(project).is_dir()
    assert (project / "dvc.lock").read_bytes() == before


def repro(root: Path, *arguments: str, fails: bool = False) -> str:
    command = [sys.executable, "-m", "dvc", "repro", *arguments]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    assert bool(done.returncode) == fails, done.stderr
    return done.stdout + done.stderr


def test_dvc_repro_fails_before_any_work_without_a_start_lock(project: Path) -> None:
    shutil.copy(CHECKOUT / START_LOCK, project / START_LOCK)
    write_text(project, num_lines=120)
    told = repro(project, fails=True)
    assert "start.lock and `pretrain.start` disagree" in told
    assert "`clozeline run --no-release`" in told
    assert "Running stage 'tokenize'" not in told


def delete_version(root: Path) -> None:
    MlflowClient(Workspace(root).defaults()["MLFLOW_TRACKING_URI"]).delete_model_version(NAME, "1")


def edit_lock(root: Path) -> None:
    lock = lock_of(root)
    assert lock
    text = (root / START_LOCK).read_text()
    (root / START_LOCK).write_text(text.replace(lock.files["config.json"], "f" * 64))


def ask_for_a_wider_model(root: Path) -> None:
    edit(root, {"pretrain": {"model": {"hidden_size": 32}}})


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (ask_for_a_wider_model, f"training cannot continue from {NAME} version 1"),
        (delete_version, f"{START_LOCK} names a version that the registry does not have"),
        (edit_lock, f"config.json of {NAME} version 1 is not the file in {START_LOCK}"),
    ],
)
def test_a_deleted_or_different_start_stops_the_run_before_any_work(
    project: Path, change: Callable[[Path], None], told: str
) -> None:
    edit(project, {"recipes": {"continue": {"steps": 5}}})
    change(project)
    logs = list((project / "work" / "logs").iterdir())
    with pytest.raises((ArtifactError, ParamsError), match=told):
        pipeline(project)
    assert list((project / "work" / "logs").iterdir()) == logs


def test_a_run_without_a_champion_is_refused_with_the_command_that_makes_one(project: Path) -> None:
    MlflowClient(Workspace(project).defaults()["MLFLOW_TRACKING_URI"]).delete_registered_model_alias(NAME, "champion")
    write_text(project, num_lines=120)
    with pytest.raises(ArtifactError, match=f"no champion of {NAME}") as caught:
        pipeline(project)
    assert "recipe: measured" in caught.value.do


def test_another_machine_verifies_each_nightly_run_from_the_remote(project: Path, tmp_path: Path) -> None:
    (tmp_path / "remote").mkdir()
    remote.add(project, str(tmp_path / "remote"))
    remote.push(project)
    shutil.rmtree(project / ".dvc" / "cache")
    (project / START_LOCK).unlink()
    for version in ("1", "2"):
        traced = trace(f"models:/{NAME}/{version}", Workspace(project))
        assert START_LOCK in {ancestor.path for ancestor in traced.origin.all()}
        verify(traced, Workspace(project))


def train_again(root: Path) -> None:
    """Pre-train, but do not export: dvc.lock has the new encoder, and the package is still of the old one."""
    before = md5_of_encoder(root)
    (root / "models" / "encoder" / "config.json").write_text("{}")
    lock = YAML(typ="safe").load((root / "dvc.lock").read_text())
    (out,) = (out for out in lock["stages"]["pretrain"]["outs"] if out["md5"] == before)
    out["md5"] = md5_of_encoder(root)
    with (root / "dvc.lock").open("w") as file:
        YAML().dump(lock, file)


def md5_of_encoder(root: Path) -> str | None:
    with Objects.open(root) as objects:
        return objects.md5_of(root / "models" / "encoder")


@pytest.mark.parametrize(
    "change",
    [
        train_again,
        lambda root: shutil.rmtree(root / "models" / "encoder"),
        lambda root: documents_path(root / "data" / "tokens", "train").unlink(),
    ],
)
def test_only_the_encoder_that_a_package_was_made_from_is_stored_with_it(
    project: Path, change: Callable[[Path], None]
) -> None:
    params = read_params(project / "params.yaml")
    with disable_run_logger():
        assert trained_encoder(Workspace(project), params)
        change(project)
        assert trained_encoder(Workspace(project), params) is None
