"""The flow runs DVC's graph through DVC, and shows it in Prefect and MLflow."""

import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from mlflow.entities import Run
from mlflow.tracking import MlflowClient
from ruamel.yaml import YAML

from clozeline.flows import pipeline as pipeline_module
from clozeline.flows.pipeline import StageResult, pipeline
from clozeline.orchestration import prefect_adapter
from clozeline.system.errors import DataError, ParamsError, StorageError, TransientError
from clozeline.system.workspace import Workspace, run_lock
from tests.make.projects import PROJECT, with_own_stages
from tests.make.session import PutDatabase
from tests.orchestration.test_checks import set_param

pytestmark = pytest.mark.usefixtures("prefect_server")
STAGES = ["upper", "count", "sign@ada", "sign@alan"]


def outcomes(results: list[StageResult]) -> dict[str, str]:
    return {result.name: result.outcome for result in results}


def every(outcome: str) -> dict[str, str]:
    return dict.fromkeys(STAGES, outcome)


def tracked(root: Path) -> tuple[MlflowClient, list[Run]]:
    """Return a client of the project's MLflow, and its runs, oldest first."""
    client = MlflowClient(Workspace(root).defaults()["MLFLOW_TRACKING_URI"])
    return client, client.search_runs(["1"], order_by=["attributes.start_time ASC"])


@dataclass(frozen=True)
class History:
    """Project that ran four times: new, unchanged, with a changed source, and with the first source again."""

    root: Path
    results: list[list[StageResult]]
    client: MlflowClient
    parents: list[Run]
    children: list[dict[str, Run]]  # runs of the stages of each parent, by stage


@pytest.fixture(scope="module")
def history(prefect_server: None, lasting_toy: Path) -> History:
    results = []
    with pytest.MonkeyPatch.context() as monkeypatch:
        for text in ("one two", "one two", "one two three", "one two"):
            monkeypatch.setenv("MLFLOW_TRACKING_URI", "")
            (lasting_toy / "raw.txt").write_text(text)
            results.append(pipeline(lasting_toy))
    client, runs = tracked(lasting_toy)
    parents = [run for run in runs if "mlflow.parentRunId" not in run.data.tags]
    children = [
        {run.data.tags["dvc.stage"]: run for run in runs if run.data.tags.get("mlflow.parentRunId") == one.info.run_id}
        for one in parents
    ]
    return History(lasting_toy, results, client, parents, children)


def test_a_refresh_rereads_only_sources_that_dvc_cannot_watch(
    prefect_server: None, toy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "")
    monkeypatch.setattr(pipeline_module, "_SNAPSHOT", "upper")
    assert outcomes(pipeline(toy, refresh=True)) == every("executed")
    assert outcomes(pipeline(toy, refresh=True)) == every("unchanged")
    params = (toy / "params.yaml").read_text().replace("kind: python-docs", "kind: files")
    (toy / "params.yaml").write_text(params.replace("    url: null", "    url: s3://texts/in"))
    assert outcomes(pipeline(toy)) == every("unchanged")
    assert outcomes(pipeline(toy, refresh=True)) == every("unchanged") | {"upper": "executed"}


def test_a_second_run_changes_nothing_and_a_reverted_change_is_restored_from_the_cache(history: History) -> None:
    expected = ["executed", "unchanged", "executed", "restored"]
    assert [outcomes(results) for results in history.results] == [every(outcome) for outcome in expected]
    assert sum(result.seconds for result in history.results[1]) < 1, "an unchanged project takes less than a second"


def dvc(root: Path, *arguments: str) -> str:
    command = [sys.executable, "-m", "dvc", *arguments]
    return subprocess.run(command, cwd=root, check=True, capture_output=True, text=True).stdout


def test_mlflow_has_a_parent_for_each_run_and_a_child_with_the_results_of_each_stage_that_executed(
    history: History,
) -> None:
    assert [sorted(names) for names in history.children] == [sorted(STAGES), [], sorted(STAGES), []]
    runs = [*history.parents, *(run for names in history.children for run in names.values())]
    assert {run.info.status for run in runs} == {"FINISHED"}
    child, count = history.children[0]["upper"], history.children[2]["count"]
    assert (child.data.params, child.data.tags["dvc.outcome"]) == ({"seed": "20260101"}, "executed")
    given = {data.dataset.name: data.dataset.digest for data in child.inputs.dataset_inputs}
    assert given == {"raw.txt": hashlib.md5(b"one two", usedforsecurity=False).hexdigest()}
    assert count.data.metrics == {"words": 3}
    files = [{file.path for file in history.client.list_artifacts(run.info.run_id)} for run in (count, runs[3])]
    assert files == [{"count.json", "count.log"}, {"dvc.lock", "params.yaml"}]
    restored = runs[3].data
    assert {restored.tags[f"dvc.outcome.{name.replace('@', '_')}"] for name in STAGES} == {"restored"}
    assert restored.metrics == {"count.words": 2}
    lock = hashlib.md5((history.root / "dvc.lock").read_bytes(), usedforsecurity=False).hexdigest()
    assert restored.tags["dvc.lock_md5"] == lock


def test_after_the_flow_dvc_repro_has_nothing_to_do_and_writes_the_same_lock(history: History, toy: Path) -> None:
    assert "up to date" in dvc(history.root, "repro")
    dvc(toy, "repro")
    assert (toy / "dvc.lock").read_bytes() == (history.root / "dvc.lock").read_bytes()


def test_bad_input_is_not_retried_and_the_error_is_that_of_the_stage(
    toy: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (toy / "raw.txt").write_text("bad")
    with pytest.raises(DataError, match="is bad") as caught:
        pipeline(toy)
    assert (caught.value.is_reported, caught.value.do) == (True, "write good")
    assert caplog.text.count("raw.txt is bad") == 1, "only the stage logs it"
    assert "NotReady" not in caplog.text
    assert "not started: count, sign@ada, sign@alan" in caplog.text
    (log,) = (toy / "work/logs").glob("*/upper.log")
    assert log.read_text().count("upper reads raw.txt") == 1
    _, (failed, child) = tracked(toy)
    assert (failed.info.status, child.info.status) == ("FAILED", "FAILED")
    assert "raw.txt is bad" in child.data.tags["error"]
    assert failed.data.tags["dvc.outcome.upper"] == "failed"
    assert "dvc.outcome.count" not in failed.data.tags


def test_a_transient_error_is_retried(toy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefect_adapter, "_RETRY_DELAYS_SECONDS", [0.1] * 4)
    (toy / "raw.txt").write_text("busy")
    with pytest.raises(TransientError, match="the store is busy"):
        pipeline(toy)
    assert (toy / "attempts").read_text() == "xxxxx"
    assert len(tracked(toy)[1]) == 2


def test_a_second_run_in_the_same_folder_is_refused_by_name(toy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline_module, "run_lock", lambda path, **given: run_lock(path, wait_seconds=0.5))
    with run_lock(toy / "work/run.lock"), pytest.raises(TransientError, match=f"process {os.getpid()}"):
        pipeline(toy)
    assert not (toy / "upper.txt").exists()


def with_changed(root: Path, old: str, new: str) -> None:
    """Let the folder have this project's own stages and a model, and change params.yaml."""
    set_param(with_own_stages(root), old, new)
    (root / "models/encoder").mkdir(parents=True)
    (root / "models/encoder/config.json").write_text("{}")


@pytest.mark.parametrize(
    ("change", "error", "told"),
    [
        (lambda toy: set_param(toy, "seed:", "sede:"), ParamsError, "sede"),
        (lambda toy: with_changed(toy, "data: data/clean", "data: params.yaml"), DataError, r"finetune\.library"),
        (lambda toy: with_changed(toy, "start: null", "start: models/encoder"), ParamsError, "encoder` is an output"),
        (lambda toy: (toy / ".dvc/cache").write_text("no folder"), StorageError, "cache is not writable"),
    ],
)
def test_a_fault_that_is_found_at_the_start_stops_the_flow_before_any_stage(
    toy: Path, change: Callable[[Path], None], error: type[Exception], told: str
) -> None:
    change(toy)
    with pytest.raises(error, match=told):
        pipeline(toy)
    assert [name for name in ("data/raw", "work/mlflow", "upper.txt") if (toy / name).exists()] == []
    assert [path.read_text() for path in (toy / "models").rglob("*.json")] in ([], ["{}"])


def test_a_missing_text_of_ones_own_stops_the_flow_and_tasks_without_labels_are_named(
    toy: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with_changed(toy, "kind: python-docs", "kind: files")
    set_param(toy, "path: corpus.lock", "path: my-texts")
    with pytest.raises(DataError, match="my-texts does not exist"):
        pipeline(toy)
    assert "finetune.library learns which file a text is from" in caplog.text
    assert not (toy / "data/raw").exists()


def test_the_command_runs_from_an_installed_wheel_without_a_checkout_and_prints_an_error_once(
    toy: Path, tmp_path: Path, put_prefect_database: PutDatabase
) -> None:
    source = tmp_path / "wheel"
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
    shutil.copytree(PROJECT / "src", source / "src", ignore=ignored)  # with the files behind its links
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(PROJECT / name, source / name)
    options = ["--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", "dist"]
    subprocess.run([sys.executable, "-m", "pip", "wheel", *options, "."], cwd=source, check=True)
    (wheel,) = (source / "dist").glob("*.whl")
    zipfile.ZipFile(wheel).extractall(source / "site")
    put_prefect_database(Workspace(toy).prefect / "prefect.db")
    params = YAML().load(toy / "params.yaml")
    params["export"]["models"] = {}  # the toy's stages make no model
    YAML().dump(params, toy / "params.yaml")
    ours = {name: value for name, value in os.environ.items() if not name.startswith(("MLFLOW_", "PREFECT_"))}
    ours |= {"PYTHONPATH": str(source / "site"), "PREFECT_HOME": Workspace(toy).defaults()["PREFECT_HOME"]}

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, *arguments]
        return subprocess.run(command, cwd=toy, env=ours, check=False, capture_output=True, text=True)

    found = run("-c", "import clozeline.flows; print(clozeline.flows.__file__)").stdout
    assert Path(found.strip()).is_relative_to(source / "site")
    (toy / "raw.txt").write_text("bad")
    failed = run("-m", "clozeline", "run", "--no-release")
    assert (failed.returncode, failed.stderr.count("raw.txt is bad")) == (3, 1), failed.stderr
    assert [word for word in ("Traceback", "http://") if word in failed.stdout + failed.stderr] == []
    (toy / "raw.txt").write_text("one two")
    ran = run("-m", "clozeline", "run", "--no-release")
    assert ran.returncode == 0, ran.stderr
    assert (toy / "signed/ada.txt").read_text() == "ONE TWO ada"
