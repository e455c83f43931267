"""A stage runs as a process tree that streams its lines and never outlives the flow."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from dvc.repo import Repo

from clozeline.orchestration.stage_process import Ended, StageProcesses, stage_environment
from clozeline.system import supervisor
from clozeline.system.workspace import Workspace, run_lock
from tests.make.processes import is_alive, stage_pids, start_of_long_stage, wait_for

ENDS_WHILE_HELD = """
import pathlib, time
pathlib.Path("runs").touch()
until = time.monotonic() + 240
while not pathlib.Path("held").exists() and time.monotonic() < until:
    time.sleep(0.05)
pathlib.Path("upper.txt").write_text("done")
"""


def reproduce(root: Path, name: str, processes: StageProcesses | None = None) -> tuple[Ended, list[str]]:
    workspace, lines = Workspace(root), []
    ended = (processes or StageProcesses()).reproduce(
        name,
        root=root,
        environment=stage_environment(workspace, {}),
        log=workspace.logs / f"{name}.log",
        hear=lines.append,
    )
    return ended, lines


def test_output_lines_are_passed_on_and_all_are_logged(toy: Path) -> None:
    ended, lines = reproduce(toy, "upper")
    assert ended.outcome == "executed"
    assert "upper reads raw.txt" in lines
    assert (toy / "work/logs/upper.log").read_text().splitlines() == lines


def test_python_in_a_stage_command_is_this_interpreter(toy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", os.defpath)
    (toy / "steps.py").write_text("import sys; open('upper.txt', 'w').write(sys.prefix)")
    assert reproduce(toy, "upper")[0].outcome == "executed"
    assert (toy / "upper.txt").read_text() == sys.prefix


def test_a_lock_held_by_another_dvc_command_loses_no_result_of_a_stage(toy: Path) -> None:
    """Without `--wait-for-lock`, DVC gives up after 3 seconds, and the stage's result is lost."""
    (toy / "steps.py").write_text(ENDS_WHILE_HELD)
    held = toy / "held"

    def hold_while_the_stage_ends() -> None:
        with Repo(str(toy)) as repo:
            assert wait_for((toy / "runs").exists, 240)  # DVC releases its lock while the stage runs
            with repo.lock:
                held.touch()
                time.sleep(6)

    thread = threading.Thread(target=hold_while_the_stage_ends)
    thread.start()
    ended, lines = reproduce(toy, "upper")
    thread.join()
    assert held.exists()
    assert ended.outcome == "executed", lines
    assert reproduce(toy, "upper")[0].outcome == "unchanged"


def test_ending_the_flow_kills_even_an_unresponsive_stage_and_its_children(toy: Path) -> None:
    processes = StageProcesses()
    start_of_long_stage(toy)
    thread = threading.Thread(target=reproduce, args=[toy, "upper", processes])
    thread.start()
    assert wait_for(lambda: len(stage_pids(toy)) == 2, 240)
    started = time.monotonic()
    processes.end_all()
    thread.join()
    assert not any(map(is_alive, stage_pids(toy)))
    assert time.monotonic() - started < 60  # by itself the stage would take 600 s


KILLED_FLOW = """
import sys
from pathlib import Path
from clozeline.system.workspace import Workspace
from clozeline.system.workspace import run_lock
from clozeline.orchestration.stage_process import stage_environment
from clozeline.orchestration.stage_process import StageProcesses
workspace = Workspace(Path.cwd())
with run_lock(workspace.lock_file) as lock:
    StageProcesses([lock]).reproduce("upper", root=workspace.root, environment=stage_environment(workspace, {}),
                                     log=workspace.logs / "upper.log", hear=print)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_flow_leaves_no_process_after_ten_seconds_and_holds_the_lock_until_then(
    toy: Path, number: signal.Signals
) -> None:
    start_of_long_stage(toy)
    flow = subprocess.Popen([sys.executable, "-c", KILLED_FLOW], cwd=toy)
    assert wait_for(lambda: len(stage_pids(toy)) == 2, 240)
    flow.send_signal(number)
    flow.wait()
    assert any(map(is_alive, stage_pids(toy)))
    assert supervisor._STAGE_SECONDS + supervisor._COMMAND_SECONDS < 10
    with run_lock(toy / "work/run.lock", wait_seconds=120):  # a busy machine takes longer
        assert not any(map(is_alive, stage_pids(toy)))
