"""However a flow run ends, none of its processes is left, and MLflow records how it ended."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from mlflow.tracking import MlflowClient
from prefect.settings import PREFECT_API_URL

from clozeline.flows.pipeline import pipeline
from clozeline.workspace import Workspace
from tests.process_states import is_alive, stage_pids, start_of_long_stage, wait_for

pytestmark = pytest.mark.usefixtures("prefect_server")


def start_flow(root: Path) -> subprocess.Popen[bytes]:
    start_of_long_stage(root)
    environment = {**os.environ, "PREFECT_API_URL": PREFECT_API_URL.value()}
    flow = subprocess.Popen(
        [sys.executable, "-c", "from clozeline.flows.pipeline import pipeline; pipeline()"], cwd=root, env=environment
    )
    assert wait_for(lambda: len(stage_pids(root)) == 2, 180)
    # Runs reach MLflow by the outbox, a moment after the stage has started.
    assert wait_for(lambda: statuses(root) == ["RUNNING", "RUNNING"], 60)
    return flow


def statuses(root: Path) -> list[str]:
    client = MlflowClient(Workspace(root).defaults()["MLFLOW_TRACKING_URI"])
    return [run.info.status for run in client.search_runs(["1"], order_by=["attributes.start_time ASC"])]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_or_cancelled_flow_ends_its_stage_and_says_killed(toy: Path, number: signal.Signals) -> None:
    flow = start_flow(toy)
    flow.send_signal(number)
    assert flow.wait(timeout=120) != 0
    assert not any(map(is_alive, stage_pids(toy)))
    assert statuses(toy) == ["KILLED", "KILLED"]


def test_a_killed_flow_leaves_no_process_and_the_next_run_closes_its_runs(toy: Path) -> None:
    flow = start_flow(toy)
    flow.kill()
    flow.wait()
    assert wait_for(lambda: not any(map(is_alive, stage_pids(toy))), 30)
    (toy / "raw.txt").write_text("one two")
    pipeline(toy)
    assert statuses(toy)[:2] == ["KILLED", "KILLED"]
    assert set(statuses(toy)[2:]) == {"FINISHED"}
