"""However a flow or `clozeline run` ends, it leaves no process, and MLflow records how it ended.

If a person stops it, the message says that the same command continues the run.
"""

import os
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing, suppress
from pathlib import Path

import psutil
import pytest
from prefect.settings import PREFECT_API_URL

from clozeline.flows.pipeline import pipeline
from clozeline.system.workspace import Workspace
from tests.make.processes import is_alive, stage_pids, start_of_long_stage, wait_for
from tests.make.session import PutDatabase

# Attempts are rare.
FLOW = """
from clozeline.flows.pipeline import pipeline
from clozeline.orchestration import prefect_adapter
prefect_adapter._RETRY_DELAYS_SECONDS = [600.0] * 4
pipeline()
"""


def start(root: Path, *command: str, **environment: str) -> subprocess.Popen[bytes]:
    """Start a command of Python, with its output in the file `said`."""
    ours = {name: value for name, value in os.environ.items() if name != "PREFECT_API_URL"}
    with (root / "said").open("w") as said:
        return subprocess.Popen([sys.executable, *command], cwd=root, env=ours | environment, stdout=said, stderr=said)


def start_command(root: Path) -> subprocess.Popen[bytes]:
    home = Workspace(root).defaults()["PREFECT_HOME"]
    return start(root, "-m", "clozeline", "run", "--no-release", PREFECT_HOME=home)


def processes_in(root: Path) -> list[str]:
    """Return the command lines of the processes whose working directory is `root`, whatever their parent is now."""
    found = psutil.process_iter(["cwd", "status", "cmdline"])
    here = [one.info for one in found if one.info["cwd"] == str(root) and one.info["status"] != psutil.STATUS_ZOMBIE]
    return [" ".join(one["cmdline"] or []) for one in here]


def statuses(root: Path) -> list[str]:
    """Return the statuses of the runs, oldest first. MLflow's client would create the tables, as the flow does."""
    address = f"file:{Workspace(root).mlflow / 'mlflow.db'}?mode=ro"
    with suppress(sqlite3.OperationalError), closing(sqlite3.connect(address, uri=True)) as database:
        return [status for (status,) in database.execute("SELECT status FROM runs ORDER BY start_time")]
    return []  # no file or table yet


@pytest.mark.usefixtures("prefect_server")
@pytest.mark.parametrize(("number", "exit_code"), [(signal.SIGKILL, -9), (signal.SIGHUP, 128 + 15)])
def test_an_ended_command_leaves_no_process_and_says_how_to_continue(
    toy: Path, number: signal.Signals, exit_code: int, put_prefect_database: PutDatabase
) -> None:
    """Repeated SIGTERM, as from `timeout` and supervisors, does not cut off the shutdown."""
    put_prefect_database(Workspace(toy).prefect / "prefect.db")
    start_of_long_stage(toy)
    command = start_command(toy)
    assert wait_for(lambda: len(stage_pids(toy)) == 2, 240)
    assert wait_for(lambda: statuses(toy) == ["RUNNING", "RUNNING"], 240), "the outbox delivers them a moment later"
    assert any("prefect.server" in line for line in processes_in(toy))
    command.send_signal(number)
    while command.poll() is None:
        time.sleep(0.3)
        if number == signal.SIGTERM:
            command.send_signal(number)
    assert command.returncode == exit_code
    assert wait_for(lambda: not processes_in(toy), 120), processes_in(toy)
    said = (toy / "said").read_text()
    assert not [word for word in ("Traceback", "Crash", "atexit", "upper: failed") if word in said], said
    if number == signal.SIGKILL:
        (toy / "raw.txt").write_text("one two")
        pipeline(toy)
        assert set(statuses(toy)[2:]) == {"FINISHED"}
    else:
        assert said.count("stopped. The same command continues from here") == 1
        assert "upper: stopped" in said
    assert statuses(toy)[:2] == ["KILLED", "KILLED"], "if it could not say so, the next run does"


def test_a_command_that_is_stopped_while_prefect_starts_says_how_to_continue(toy: Path) -> None:
    command = start_command(toy)
    assert wait_for(lambda: any("prefect.server" in line for line in processes_in(toy)), 240)
    command.send_signal(signal.SIGINT)
    assert command.wait(timeout=240) == 128 + 2
    assert wait_for(lambda: not processes_in(toy), 120), processes_in(toy)
    said = (toy / "said").read_text()
    assert said.count("stopped. The same command continues from here") == 1
    assert "Traceback" not in said, said


@pytest.mark.usefixtures("prefect_server")
def test_an_interrupted_flow_ends_its_stage_and_says_killed(toy: Path) -> None:
    start_of_long_stage(toy)
    flow = start(toy, "-c", FLOW, PREFECT_API_URL=str(PREFECT_API_URL.value()))
    assert wait_for(lambda: len(stage_pids(toy)) == 2, 240)
    assert wait_for(lambda: statuses(toy) == ["RUNNING", "RUNNING"], 240)
    flow.send_signal(signal.SIGINT)
    assert flow.wait(timeout=240) != 0
    assert not any(map(is_alive, stage_pids(toy)))
    assert statuses(toy) == ["KILLED", "KILLED"]


@pytest.mark.usefixtures("prefect_server")
def test_a_signal_ends_a_flow_that_waits_for_its_next_attempt(toy: Path) -> None:
    (toy / "raw.txt").write_text("busy")
    flow = start(toy, "-c", FLOW, PREFECT_API_URL=str(PREFECT_API_URL.value()))
    assert wait_for(lambda: "the next attempt starts in 600 s" in (toy / "said").read_text(), 240)
    flow.send_signal(signal.SIGTERM)
    assert flow.wait(timeout=240) != 0
    assert (toy / "attempts").read_text() == "x"
    assert statuses(toy) == ["KILLED", "FAILED"]
    assert "Crash" not in (toy / "said").read_text()
