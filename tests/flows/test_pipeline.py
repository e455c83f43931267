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
from uuid import UUID

import pytest
from mlflow.entities import Run
from mlflow.tracking import MlflowClient
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId
from ruamel.yaml import YAML

from clozeline.flows import pipeline as pipeline_module
from clozeline.flows.pipeline import StageResult, pipeline
from clozeline.orchestration import prefect_adapter
from clozeline.orchestration.stage_process import NUM_KEPT
from clozeline.records.record import Lock
from clozeline.system.errors import DataError, ParamsError, StorageError, TransientError
from clozeline.system.workspace import Workspace, run_lock
from clozeline.versions.graph import read_stage_graph
from tests.make.projects import PROJECT, with_own_stages
from tests.make.session import PutDatabase
from tests.orchestration.test_checks import set_param

pytestmark = pytest.mark.usefixtures("prefect_server")
STAGES = ["upper", "count", "sign@ada", "sign@alan"]
WAITS_FOR_THE_OTHER = """
import pathlib, sys, time
if sys.argv[1] == "sign":
    pathlib.Path(f"{sys.argv[4]}.begun").touch()
    deadline = time.monotonic() + 120
    while len([*pathlib.Path().glob("*.begun")]) < 2:
        assert time.monotonic() < deadline, "the other stage does not run"
        time.sleep(0.1)
"""


def outcomes(results: list[StageResult]) -> dict[str, str]:
    return {result.name: result.outcome for result in results}


def every(outcome: str) -> dict[str, str]:
    return dict.fromkeys(STAGES, outcome)


def tracking_client(root: Path) -> MlflowClient:
    return MlflowClient(Workspace(root).defaults()["MLFLOW_TRACKING_URI"])


def runs_in(root: Path) -> list[Run]:
    """Return the MLflow runs of the project, oldest first."""
    return tracking_client(root).search_runs(["1"], order_by=["attributes.start_time ASC"])


def children_of(root: Path, parent: Run) -> dict[str, Run]:
    runs = [run for run in runs_in(root) if run.data.tags.get("mlflow.parentRunId") == parent.info.run_id]
    return {run.data.tags["dvc.stage"]: run for run in runs}


@dataclass(frozen=True)
class History:
    """Project that ran four times: new, unchanged, with a changed source, and with the first source again."""

    root: Path
    results: list[list[StageResult]]
    parents: list[Run]


@pytest.fixture(scope="module")
def history(prefect_server: None, lasting_toy: Path) -> History:
    results = []
    with pytest.MonkeyPatch.context() as monkeypatch:
        for text in ("one two", "one two", "one two three", "one two"):
            monkeypatch.setenv("MLFLOW_TRACKING_URI", "")
            (lasting_toy / "raw.txt").write_text(text)
            results.append(pipeline(lasting_toy))
    parents = [run for run in runs_in(lasting_toy) if "mlflow.parentRunId" not in run.data.tags]
    return History(lasting_toy, results, parents)


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


def test_prefect_has_a_task_for_each_stage_with_the_edges_of_dvc(history: History) -> None:
    first = history.parents[0].data.tags["prefect.flow_run_id"]
    with get_client(sync_client=True) as client:
        runs = client.read_task_runs(flow_run_filter=FlowRunFilter(id=FlowRunFilterId(any_=[first])))
    names = {run.id: run.name for run in runs}
    assert sorted(names.values()) == sorted(STAGES)
    waits = {(names[given.id], run.name) for run in runs for given in run.task_inputs.get("wait_for", [])}
    drawn = dvc(history.root, "dag", "--dot").replace('"', "").replace(";", "").splitlines()
    assert waits == {tuple(line.strip().split(" -> ")) for line in drawn if "->" in line}


def dvc(root: Path, *arguments: str) -> str:
    command = [sys.executable, "-m", "dvc", *arguments]
    return subprocess.run(command, cwd=root, check=True, capture_output=True, text=True).stdout


def test_mlflow_has_a_parent_for_each_run_and_a_child_for_each_stage_that_executed(history: History) -> None:
    children = [children_of(history.root, parent) for parent in history.parents]
    assert [sorted(names) for names in children] == [sorted(STAGES), [], sorted(STAGES), []]
    runs = [*history.parents, *(run for names in children for run in names.values())]
    assert {run.info.status for run in runs} == {"FINISHED"}


def test_a_child_run_has_the_inputs_params_and_results_of_its_stage(history: History) -> None:
    child = children_of(history.root, history.parents[0])["upper"]
    assert child.data.params == {"seed": "20260101"}
    assert child.data.tags["dvc.outcome"] == "executed"
    source = Lock.read(history.root / "dvc.lock").stages["upper"].data[0]
    given = {data.dataset.name: data.dataset.digest for data in child.inputs.dataset_inputs}
    assert given == {"raw.txt": source.md5}
    assert source.md5 == hashlib.md5(b"one two", usedforsecurity=False).hexdigest()
    count = children_of(history.root, history.parents[2])["count"]
    assert count.data.metrics == {"words": 3}
    files = {file.path for file in tracking_client(history.root).list_artifacts(count.info.run_id)}
    assert files == {"count.json", "count.log"}


def test_a_parent_run_has_the_outcome_of_each_stage_and_the_files_to_reproduce_it(history: History) -> None:
    restored = history.parents[3]
    assert {restored.data.tags[f"dvc.outcome.{name.replace('@', '_')}"] for name in STAGES} == {"restored"}
    assert restored.data.metrics == {"count.words": 2}
    lock = hashlib.md5((history.root / "dvc.lock").read_bytes(), usedforsecurity=False).hexdigest()
    assert restored.data.tags["dvc.lock_md5"] == lock
    files = {file.path for file in tracking_client(history.root).list_artifacts(restored.info.run_id)}
    assert files == {"dvc.lock", "params.yaml"}


def test_after_the_flow_dvc_repro_has_nothing_to_do_and_writes_the_same_lock(history: History, toy: Path) -> None:
    assert "up to date" in dvc(history.root, "repro")
    dvc(toy, "repro")
    assert (toy / "dvc.lock").read_bytes() == (history.root / "dvc.lock").read_bytes()


def test_with_a_cluster_independent_stages_run_side_by_side_and_write_the_same_lock(
    history: History, toy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commands of the toy's stages stay here: only `clozeline stage` goes to a node."""
    monkeypatch.setenv("CLOZELINE_CLUSTER", "ray://auto")
    (toy / "steps.py").write_text(WAITS_FOR_THE_OTHER + (toy / "steps.py").read_text())
    assert outcomes(pipeline(toy)) == every("executed")
    assert (toy / "dvc.lock").read_bytes() == (history.root / "dvc.lock").read_bytes()


def test_a_stage_that_is_skipped_as_unchanged_is_unchanged_for_dvc_too(toy: Path) -> None:
    """For this reason an unchanged stage needs no `dvc repro` of its own."""
    dvc(toy, "repro")
    changes = {
        "nothing": lambda: None,
        "a source": lambda: (toy / "raw.txt").write_text("one two three"),
        "an output in the middle": lambda: (toy / "upper.txt").write_text("TAMPERED"),
        "a metric that is gone": lambda: (toy / "metrics/count.json").unlink(),
        "a knob": lambda: set_param(toy, "20260101", "1"),
    }
    for change, make in changes.items():
        make()
        seen_unchanged = {node.name for node in read_stage_graph(toy) if not node.is_changed}
        lines = dvc(toy, "repro").splitlines()
        unchanged = {name for name in STAGES if f"Stage '{name}' didn't change, skipping" in lines}
        assert seen_unchanged <= unchanged, change
        assert (seen_unchanged == set(STAGES)) == (change == "nothing"), change


def test_bad_input_is_not_retried_and_the_error_is_that_of_the_stage(
    toy: Path, caplog: pytest.LogCaptureFixture
) -> None:
    old = [toy / "work/logs" / str(UUID(int=number)) for number in range(NUM_KEPT + 1)]
    for number, folder in enumerate(old):
        folder.mkdir(parents=True)
        os.utime(folder, (number, number))
    (toy / "raw.txt").write_text("bad")
    with pytest.raises(DataError, match="is bad") as caught:
        pipeline(toy)
    assert (caught.value.is_reported, caught.value.do) == (True, "write good")
    assert caplog.text.count("raw.txt is bad") == 1, "only the stage logs it"
    assert "NotReady" not in caplog.text
    assert "not started: count, sign@ada, sign@alan" in caplog.text
    (log,) = (toy / "work/logs").glob("*/upper.log")
    assert log.read_text().count("upper reads raw.txt") == 1
    assert [folder for folder in old if not folder.exists()] == [old[0]], "the logs of old runs are deleted"
    failed, child = runs_in(toy)
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
    assert len(runs_in(toy)) == 2


def test_a_second_run_in_the_same_folder_is_refused_by_name(toy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline_module, "run_lock", lambda path, **given: run_lock(path, wait_seconds=0.5))
    with run_lock(toy / "work/run.lock"), pytest.raises(TransientError, match=f"process {os.getpid()}"):
        pipeline(toy)
    assert not (toy / "upper.txt").exists()


def without_its_text(root: Path) -> None:
    set_param(with_own_stages(root), "kind: python-docs", "kind: files")
    set_param(root, "path: corpus.lock", "path: my-texts")


def with_labels_in_an_unknown_format(root: Path) -> None:
    (with_own_stages(root) / "mine.xlsx").write_bytes(b"PK")
    splits = "{train: train.parquet, validation: validation.parquet, test: holdout.parquet}"
    set_param(root, f"data: data/clean\n    splits: {splits}\n    label", "data: mine.xlsx\n    label")


def with_a_start_that_dvc_would_delete(root: Path) -> None:
    set_param(with_own_stages(root), "start: null", "start: models/encoder")
    (root / "models/encoder").mkdir(parents=True)
    (root / "models/encoder/config.json").write_text("{}")


@pytest.mark.parametrize(
    ("change", "error", "told"),
    [
        (lambda toy: set_param(toy, "seed:", "sede:"), ParamsError, "sede"),
        (without_its_text, DataError, "my-texts does not exist"),
        (with_labels_in_an_unknown_format, DataError, r"mine\.xlsx has a format that cannot be read"),
        (with_a_start_that_dvc_would_delete, ParamsError, r"`pretrain\.start: models/encoder` is an output"),
        (lambda toy: (toy / ".dvc/cache").write_text("no folder"), StorageError, "cache is not writable"),
    ],
)
def test_a_fault_that_is_found_at_the_start_stops_the_flow_before_any_stage(
    toy: Path, caplog: pytest.LogCaptureFixture, change: Callable[[Path], None], error: type[Exception], told: str
) -> None:
    change(toy)
    kept = {path: path.read_bytes() for path in (toy / "models").rglob("*.json")}
    with pytest.raises(error, match=told):
        pipeline(toy)
    assert ("finetune.library learns which file a text is from" in caplog.text) == (change is without_its_text)
    assert [name for name in ("data/raw", "work/mlflow", "upper.txt") if (toy / name).exists()] == []
    assert {path: path.read_bytes() for path in kept} == kept


def test_a_flow_fails_if_a_stage_did_not_make_the_input_of_another(toy: Path) -> None:
    dvc_yaml = (toy / "dvc.yaml").read_text().replace("outs: [upper.txt]", "outs: [made]")
    dvc_yaml = dvc_yaml.replace("raw.txt upper.txt", "raw.txt made/upper.txt")
    (toy / "dvc.yaml").write_text(dvc_yaml.replace("deps: [upper.txt]", "deps: [made/lower.txt]"))
    with pytest.raises(DataError, match=r"made/lower\.txt does not exist .*stage `count`"):
        pipeline(toy)
    assert (toy / "made/upper.txt").exists()


def unpacked_wheel(folder: Path) -> Path:
    folder.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(PROJECT / name, folder / name)
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
    shutil.copytree(PROJECT / "src", folder / "src", ignore=ignored)  # with the files behind its links
    options = ["--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", "dist"]
    subprocess.run([sys.executable, "-m", "pip", "wheel", *options, "."], cwd=folder, check=True)
    (wheel,) = (folder / "dist").glob("*.whl")
    zipfile.ZipFile(wheel).extractall(folder / "site")
    return folder / "site"


def test_the_pipeline_runs_from_an_installed_wheel_without_a_checkout(
    toy: Path, tmp_path: Path, put_prefect_database: PutDatabase
) -> None:
    installed = unpacked_wheel(tmp_path / "wheel")
    put_prefect_database(Workspace(toy).prefect / "prefect.db")
    params = YAML().load(toy / "params.yaml")
    params["export"]["models"] = {}  # the toy's stages make no model
    YAML().dump(params, toy / "params.yaml")
    ours = {name: value for name, value in os.environ.items() if not name.startswith(("MLFLOW_", "PREFECT_"))}
    environment = {**ours, "PYTHONPATH": str(installed), "PREFECT_HOME": Workspace(toy).defaults()["PREFECT_HOME"]}
    where = [sys.executable, "-c", "import clozeline.flows; print(clozeline.flows.__file__)"]
    found = subprocess.run(where, cwd=toy, env=environment, check=True, capture_output=True, text=True).stdout
    assert Path(found.strip()).is_relative_to(installed)
    run = [sys.executable, "-m", "clozeline", "run", "--no-release"]
    ran = subprocess.run(run, cwd=toy, env=environment, check=False, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    assert (toy / "signed/ada.txt").read_text() == "ONE TWO ada"
