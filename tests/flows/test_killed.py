"""However a flow or `clozeline run` ends, it leaves no process, and MLflow records how it ended.

If a person stops it, the message says that the same command continues the run.
"""

import os
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import psutil
import pytest
from mlflow.tracking import MlflowClient
from prefect.settings import PREFECT_API_URL

from clozeline.flows.pipeline import pipeline
from clozeline.system.workspace import Workspace
from tests.make.processes import is_alive, stage_pids, start_of_long_stage, wait_for
from tests.make.session import PutDatabase

EXIT_CODES = {signal.SIGKILL: -9, signal.SIGHUP: 128 + 15, signal.SIGINT: 128 + 2, signal.SIGTERM: 128 + 15}


def processes_in(root: Path) -> list[str]:
    """Return the command lines of the processes whose working directory is `root`, whatever their parent is now."""
    found = []
    for process in psutil.process_iter(["cwd", "status", "cmdline"]):
        if process.info["cwd"] == str(root) and process.info["status"] != psutil.STATUS_ZOMBIE:
            found.append(" ".join(process.info["cmdline"] or []))
    return found


def start_command(root: Path) -> subprocess.Popen[bytes]:
    """Start `clozeline run`, with its output in the file `said`."""
    environment = {name: value for name, value in os.environ.items() if name != "PREFECT_API_URL"}
    with (root / "said").open("w") as said:
        return subprocess.Popen(
            [sys.executable, "-m", "clozeline", "run", "--no-release"],
            cwd=root,
            env=environment | {"PREFECT_HOME": Workspace(root).defaults()["PREFECT_HOME"]},
            stdout=said,
            stderr=said,
        )


def start_command_with_a_long_stage(root: Path) -> subprocess.Popen[bytes]:
    start_of_long_stage(root)
    command = start_command(root)
    assert wait_for(lambda: len(stage_pids(root)) == 2, 240)
    assert any("prefect.server" in line for line in processes_in(root))
    return command


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGHUP, signal.SIGINT, signal.SIGTERM])
def test_an_ended_command_leaves_no_process_and_says_how_to_continue(
    toy: Path, number: signal.Signals, put_prefect_database: PutDatabase
) -> None:
    """Repeated SIGTERM, as from `timeout` and supervisors, does not cut off the shutdown."""
    put_prefect_database(Workspace(toy).prefect / "prefect.db")
    command = start_command_with_a_long_stage(toy)
    command.send_signal(number)
    while command.poll() is None:
        time.sleep(0.3)
        if number == signal.SIGTERM:
            command.send_signal(number)
    assert command.returncode == EXIT_CODES[number]
    assert wait_for(lambda: not processes_in(toy), 120), processes_in(toy)
    said = (toy / "said").read_text()
    if number != signal.SIGKILL:
        assert said.count("stopped. The same command continues from here") == 1
        assert "upper: stopped" in said
    assert not [word for word in ("Traceback", "Crash", "atexit", "upper: failed") if word in said], said


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_command_that_is_stopped_while_prefect_starts_says_how_to_continue(toy: Path, number: signal.Signals) -> None:
    command = start_command(toy)
    assert wait_for(lambda: any("prefect.server" in line for line in processes_in(toy)), 240)
    command.send_signal(number)
    assert command.wait(timeout=240) == EXIT_CODES[number]
    assert wait_for(lambda: not processes_in(toy), 120), processes_in(toy)
    said = (toy / "said").read_text()
    assert said.count("stopped. The same command continues from here") == 1
    assert "Traceback" not in said, said


def test_a_failing_stage_prints_its_error_once(toy: Path, put_prefect_database: PutDatabase) -> None:
    put_prefect_database(Workspace(toy).prefect / "prefect.db")
    (toy / "raw.txt").write_text("bad")
    assert start_command(toy).wait(timeout=240) == 3
    said = (toy / "said").read_text()
    assert said.count("raw.txt is bad") == 1, said
    assert "http://" not in said, "the temporary server has ended"
    assert "Traceback" not in said


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


@pytest.mark.usefixtures("prefect_server")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_or_cancelled_flow_ends_its_stage_and_says_killed(toy: Path, number: signal.Signals) -> None:
    flow = start_flow(toy)
    flow.send_signal(number)
    assert flow.wait(timeout=240) != 0
    assert not any(map(is_alive, stage_pids(toy)))
    assert statuses(toy) == ["KILLED", "KILLED"]


@pytest.mark.usefixtures("prefect_server")
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


@pytest.mark.usefixtures("prefect_server")
def test_a_killed_flow_leaves_no_process_and_the_next_run_closes_its_runs(toy: Path) -> None:
    flow = start_flow(toy)
    flow.kill()
    flow.wait()
    assert wait_for(lambda: not any(map(is_alive, stage_pids(toy))), 120)
    (toy / "raw.txt").write_text("one two")
    pipeline(toy)
    assert statuses(toy)[:2] == ["KILLED", "KILLED"]
    assert set(statuses(toy)[2:]) == {"FINISHED"}
