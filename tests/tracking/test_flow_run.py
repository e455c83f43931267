"""A flow run in MLflow is opened, resumed after an interruption and closed; a lost server costs no result."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from mlflow.entities import Run
from mlflow.tracking import MlflowClient

from clozeline.artifacts.lock import LockedPath, LockedStage
from clozeline.errors import TransientError
from clozeline.tracking.flow_run import WORKSPACE, FlowRun, StageRecord
from clozeline.tracking.sender import MlflowRunLogger
from tests.mlflow_server import MlflowServer

TAGS = {WORKSPACE: "host:/project"}
LOCKED = LockedStage(
    cmd="train",
    deps=(LockedPath(path="data", md5="0" * 32 + ".dir", size=5), LockedPath(path="src/code.py", md5="1" * 32)),
    params={"params.yaml": {"pretrain": {"steps": 5, "model": {"hidden_size": 8}}}},
)


@pytest.fixture
def address(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'mlflow.db'}"


@pytest.fixture
def server(tmp_path: Path, free_port: Callable[[], int]) -> Iterator[MlflowServer]:
    server = MlflowServer(tmp_path, free_port())
    try:
        server.start()
        yield server
    finally:
        server.stop()


def read(address: str, run_id: str | None) -> Run:
    assert run_id
    return MlflowClient(address).get_run(run_id)


def test_a_stage_s_run_has_flat_params_inputs_by_hash_and_no_code(address: str) -> None:
    run = FlowRun.open(address, "run", TAGS)
    run_id = run.start_stage("pretrain", "print", TAGS)
    assert run_id
    run.end_stage(run_id, StageRecord("executed", LOCKED, metrics=[], shown=[]))
    told = read(address, run_id)
    assert told.data.params == {"pretrain.steps": "5", "pretrain.model.hidden_size": "8"}
    assert {given.dataset.name: given.dataset.digest for given in told.inputs.dataset_inputs} == {
        "data": "0" * 32 + ".dir"
    }
    assert told.data.tags["dvc.stage_sha256"] == LOCKED.sha256
    assert told.info.status == "FINISHED"


def test_a_param_that_the_run_has_with_another_value_leaves_it_unharmed(address: str) -> None:
    run = FlowRun.open(address, "run", TAGS)
    run_id = run.start_stage("pretrain", "print", TAGS)
    assert run_id
    MlflowClient(address).log_param(run_id, "pretrain.steps", "4")
    run.end_stage(run_id, StageRecord("executed", LOCKED, metrics=[], shown=[]))
    told = read(address, run_id)
    assert told.data.params == {"pretrain.steps": "4", "pretrain.model.hidden_size": "8"}
    assert told.info.status == "FINISHED"


def test_a_stage_that_was_cut_off_goes_on_in_the_same_run_under_the_new_parent(address: str) -> None:
    cut_off = FlowRun.open(address, "first", TAGS)
    run_id = cut_off.start_stage("pretrain", "print", TAGS)
    again = FlowRun.open(address, "second", TAGS)
    assert read(address, cut_off.run_id).info.status == read(address, run_id).info.status == "KILLED"
    assert again.start_stage("pretrain", "print", TAGS) == run_id
    assert read(address, run_id).data.tags["mlflow.parentRunId"] == again.run_id
    assert read(address, run_id).info.status == "RUNNING"


def test_an_unfinished_run_of_another_workspace_is_not_adopted(address: str) -> None:
    colleague = FlowRun.open(address, "colleague's", {WORKSPACE: "another"})
    theirs = colleague.start_stage("pretrain", "print", {WORKSPACE: "another"})
    ours = FlowRun.open(address, "ours", TAGS).start_stage("pretrain", "print", TAGS)
    assert ours != theirs
    assert read(address, theirs).data.tags["mlflow.parentRunId"] == colleague.run_id


def test_other_params_or_a_finished_run_make_a_new_one(address: str) -> None:
    run = FlowRun.open(address, "run", TAGS)
    first = run.start_stage("pretrain", "print", TAGS)
    assert run.start_stage("pretrain", "other print", TAGS) != first
    assert first
    run.end_stage(first, StageRecord("executed", LOCKED, metrics=[], shown=[]))
    assert run.start_stage("pretrain", "print", TAGS) != first


def test_a_run_of_another_workspace_is_left_alone(address: str) -> None:
    other = FlowRun.open(address, "other", {WORKSPACE: "host:/elsewhere"})
    FlowRun.open(address, "run", TAGS)
    assert read(address, other.run_id).info.status == "RUNNING"


def test_a_stage_with_nothing_to_do_leaves_no_run(address: str) -> None:
    run = FlowRun.open(address, "run", TAGS)
    run_id = run.start_stage("pretrain", "print", TAGS)
    assert run_id
    run.drop_stage(run_id)
    assert read(address, run_id).info.lifecycle_stage == "deleted"


def test_names_that_mlflow_refuses_are_made_plain(address: str, tmp_path: Path) -> None:
    metrics = tmp_path / "library.json"
    metrics.write_text('{"recall": {"C++ & co": 0.5, "ok": true, "name": "x"}}')
    run = FlowRun.open(address, "run", TAGS)
    run.end(
        "FINISHED", tags={"dvc.outcome.finetune@library": "executed"}, metrics={"finetune/library": metrics}, files=[]
    )
    told = read(address, run.run_id)
    assert told.data.metrics == {"finetune/library.recall.C__ _ co": 0.5}
    assert told.data.tags["dvc.outcome.finetune_library"] == "executed"


def test_a_server_that_does_not_answer_stops_a_run_before_it_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with pytest.raises(TransientError, match="MLflow does not answer"):
        FlowRun.open("http://127.0.0.1:9", "run", TAGS)


def test_a_server_that_goes_away_stops_no_run_and_gets_the_curve_when_it_is_back(
    server: MlflowServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    run = FlowRun.open(server.url, "run", TAGS)
    run_id = run.start_stage("pretrain", "print", TAGS)
    assert run_id
    log = MlflowRunLogger(server.url, run_id, retry_seconds=0.5)
    log.metrics({"loss": 1.0}, 1)
    server.stop()
    for step in range(2, 5):
        log.metrics({"loss": 1.0}, step)
    assert run.start_stage("evaluate", "print", TAGS) is None
    run.end("FINISHED", tags={}, metrics={}, files=[])
    assert "MLflow did not record" in caplog.text
    server.start()
    log.close()
    history = MlflowClient(server.url).get_metric_history(run_id, "loss")
    assert [point.step for point in history] == [1, 2, 3, 4]
