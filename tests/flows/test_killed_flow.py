"""However a flow run ends, none of its processes is left, and MLflow records how it ended."""

import os
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from mlflow.tracking import MlflowClient
from prefect.settings import PREFECT_API_URL

from clozeline.flows.pipeline import pipeline
from clozeline.system.workspace import Workspace
from tests.make.processes import is_alive, stage_pids, start_of_long_stage, wait_for

pytestmark = pytest.mark.usefixtures("prefect_server")


# The thread that records the end of a stage is slow, and attempts are rare.
FLOW = """
import time
from clozeline.flows.pipeline import pipeline
from clozeline.orchestration import prefect_adapter
from clozeline.tracking.runs import FlowRun
prefect_adapter._RETRY_DELAYS_SECONDS = [600.0] * 4
fail_stage = FlowRun.fail_stage
FlowRun.fail_stage = lambda *given: (time.sleep(2), fail_stage(*given))
pipeline()
"""


def start_pipeline(root: Path) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "PREFECT_API_URL": PREFECT_API_URL.value()}
    with (root / "flow.log").open("w") as log:
        return subprocess.Popen([sys.executable, "-c", FLOW], cwd=root, env=environment, stdout=log, stderr=log)


def start_flow(root: Path) -> subprocess.Popen[bytes]:
    start_of_long_stage(root)
    flow = start_pipeline(root)
    assert wait_for(lambda: len(stage_pids(root)) == 2, 240)
    # Runs reach MLflow by the outbox, a moment after the stage has started.
    assert wait_for(lambda: num_runs(root) == 2 and statuses(root) == ["RUNNING", "RUNNING"], 240)
    return flow


def num_runs(root: Path) -> int:
    """Count without MLflow's client, which would create the tables at the same time as the flow."""
    address = f"file:{Workspace(root).mlflow / 'mlflow.db'}?mode=ro"
    try:
        with closing(sqlite3.connect(address, uri=True)) as database:
            (num,) = database.execute("SELECT count(*) FROM runs").fetchone()
            return int(num)
    except sqlite3.OperationalError:  # no file or table yet
        return 0


def statuses(root: Path) -> list[str]:
    client = MlflowClient(Workspace(root).defaults()["MLFLOW_TRACKING_URI"])
    return [run.info.status for run in client.search_runs(["1"], order_by=["attributes.start_time ASC"])]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_or_cancelled_flow_ends_its_stage_and_says_killed(toy: Path, number: signal.Signals) -> None:
    flow = start_flow(toy)
    flow.send_signal(number)
    assert flow.wait(timeout=240) != 0
    assert not any(map(is_alive, stage_pids(toy)))
    assert statuses(toy) == ["KILLED", "KILLED"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_flow_that_waits_for_its_next_attempt(toy: Path, number: signal.Signals) -> None:
    (toy / "raw.txt").write_text("busy")
    flow = start_pipeline(toy)
    assert wait_for(lambda: "the next attempt starts in 600 s" in (toy / "flow.log").read_text(), 240)
    flow.send_signal(number)
    assert flow.wait(timeout=240) != 0
    assert (toy / "attempts").read_text() == "x"
    assert statuses(toy) == ["KILLED", "FAILED"]
    assert "Crash" not in (toy / "flow.log").read_text()


def test_a_killed_flow_leaves_no_process_and_the_next_run_closes_its_runs(toy: Path) -> None:
    flow = start_flow(toy)
    flow.kill()
    flow.wait()
    assert wait_for(lambda: not any(map(is_alive, stage_pids(toy))), 120)
    (toy / "raw.txt").write_text("one two")
    pipeline(toy)
    assert statuses(toy)[:2] == ["KILLED", "KILLED"]
    assert set(statuses(toy)[2:]) == {"FINISHED"}
