"""MLflow's server is killed at the start, in the middle or at the end of a stage, and comes back later."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from clozeline.records.record import LockedStage
from clozeline.tracking.delivery import WORKSPACE
from clozeline.tracking.run_logger import run_logger
from clozeline.tracking.runs import FlowRun, StageRecord
from tests.make.servers import MlflowServer
from tests.make.stores import delivered, runs_of

LOCKED = LockedStage(cmd="train", params={"params.yaml": {"pretrain": {"steps": 9}}})
TAGS = {WORKSPACE: "ours"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, free_port: Callable[[], int]) -> Iterator[MlflowServer]:
    server = MlflowServer(tmp_path_factory.mktemp("server"), free_port())
    try:
        server.start()
        yield server
    finally:
        server.stop()


@pytest.mark.parametrize(
    ("away", "back"),
    [("start", "middle"), ("middle", "end"), ("end", "next run")],
)
def test_an_unreachable_server_later_gets_everything_once_and_no_stage_waits_for_it(
    server: MlflowServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, away: str, back: str
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    metrics, log = tmp_path / "pretrain.json", tmp_path / "pretrain.log"
    metrics.write_text('{"top1": 0.5}')
    log.write_text("trained")
    waited_seconds = 0.0

    def reach(moment: str) -> None:
        nonlocal waited_seconds
        started = time.monotonic()
        if moment == away:
            server.stop()
        if moment == back:
            server.start()
        waited_seconds += time.monotonic() - started

    name = f"away from {away} to {back}"
    folder = tmp_path / "outbox"
    reach("start")
    run = FlowRun.open(folder, server.url, name, TAGS, retry_seconds=0.2, close_seconds=1 if back == "next run" else 60)
    stage = run.start_stage(f"stage, {name}", "print", TAGS)
    for variable, value in run.environment(stage).items():
        monkeypatch.setenv(variable, value)
    logger = run_logger("pretrain")
    for step in range(1, 10):
        logger.metrics({"loss": 1 / step}, step)
        if step == 5:
            reach("middle")
    logger.close()
    reach("end")
    run.end_stage(stage, StageRecord("executed", LOCKED, [metrics], [log]))
    run.end("FINISHED", tags={"dvc.outcome.pretrain": "executed"}, metrics={"pretrain": metrics}, files=[log])
    reach("next run")

    client = delivered(folder, server.url)
    runs = {known: run for known, run in runs_of(client).items() if name in known}
    parent, child = runs[name], runs[f"stage, {name}"]
    assert {parent.info.status, child.info.status} == {"FINISHED"}
    assert child.data.tags["mlflow.parentRunId"] == parent.info.run_id
    assert [point.step for point in client.get_metric_history(child.info.run_id, "loss")] == list(range(1, 10))
    assert child.data.metrics["top1"] == parent.data.metrics["pretrain.top1"] == 0.5
    assert child.data.params == {"pretrain.steps": "9"}
    assert {file.path for file in client.list_artifacts(child.info.run_id)} == {"pretrain.json", "pretrain.log"}
