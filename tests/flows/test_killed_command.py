"""However `clozeline run` ends, it leaves no process of a stage or of Prefect's server. If a person stops it, the
message says that the same command continues the run.
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from clozeline.system.workspace import Workspace
from tests.make.processes import stage_pids, start_of_long_stage, wait_for
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
