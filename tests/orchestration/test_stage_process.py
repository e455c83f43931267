"""A stage runs as a process tree that streams its lines and never outlives the flow."""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from uuid import UUID

import pytest
from dvc.repo import Repo

from clozeline.orchestration.stage_process import (
    NUM_KEPT,
    Ended,
    StageProcesses,
    failure_of,
    forget_old_runs,
    stage_environment,
)
from clozeline.system import supervisor
from clozeline.system.errors import ClozelineError, DataError, TransientError
from clozeline.system.workspace import Workspace, run_lock
from tests.make.params import named_in
from tests.make.processes import is_alive, stage_pids, start_of_long_stage, wait_for


def reproduce(root: Path, processes: StageProcesses | None = None) -> tuple[Ended, list[str]]:
    """Run the stage `upper`."""
    workspace, lines = Workspace(root), []
    ended = (processes or StageProcesses()).reproduce(
        "upper",
        root=root,
        environment=stage_environment(workspace, {}),
        log=workspace.logs / "upper.log",
        hear=lines.append,
    )
    return ended, lines


def test_output_lines_are_passed_on_and_logged_and_python_in_the_command_is_this_interpreter(
    toy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", os.defpath)
    (toy / "steps.py").write_text("import sys; open('upper.txt', 'w').write(sys.prefix); print('upper reads raw.txt')")
    ended, lines = reproduce(toy)
    assert ended.outcome == "executed"
    assert "upper reads raw.txt" in lines
    assert (toy / "work/logs/upper.log").read_text().splitlines() == lines
    assert (toy / "upper.txt").read_text() == sys.prefix


ENDS_WHILE_HELD = """
import pathlib, time
pathlib.Path("runs").touch()
until = time.monotonic() + 240
while not pathlib.Path("held").exists() and time.monotonic() < until:
    time.sleep(0.05)
pathlib.Path("upper.txt").write_text("done")
"""


def test_a_lock_held_by_another_dvc_command_loses_no_result_of_a_stage(toy: Path) -> None:
    """Without `--wait-for-lock`, DVC gives up after 3 seconds, and the stage's result is lost."""
    (toy / "steps.py").write_text(ENDS_WHILE_HELD)

    def hold_while_the_stage_ends() -> None:
        with Repo(str(toy)) as repo:
            assert wait_for((toy / "runs").exists, 240)  # DVC releases its lock while the stage runs
            with repo.lock:
                (toy / "held").touch()
                time.sleep(6)

    thread = threading.Thread(target=hold_while_the_stage_ends)
    thread.start()
    ended, lines = reproduce(toy)
    thread.join()
    assert (toy / "held").exists()
    assert ended.outcome == "executed", lines
    assert reproduce(toy)[0].outcome == "unchanged"


def test_ending_the_flow_kills_even_an_unresponsive_stage_and_its_children(toy: Path) -> None:
    processes = StageProcesses()
    start_of_long_stage(toy)
    thread = threading.Thread(target=reproduce, args=[toy, processes])
    thread.start()
    assert wait_for(lambda: len(stage_pids(toy)) == 2, 240)
    started = time.monotonic()
    processes.end_all()
    thread.join()
    assert not any(map(is_alive, stage_pids(toy)))
    assert time.monotonic() - started < 60  # by itself the stage would take 600 s


FLOW = """
from pathlib import Path
from clozeline.system.workspace import Workspace, run_lock
from clozeline.orchestration.stage_process import stage_environment, StageProcesses
workspace = Workspace(Path.cwd())
with run_lock(workspace.lock_file) as lock:
    StageProcesses([lock]).reproduce("upper", root=workspace.root, hear=print,
        environment=stage_environment(workspace, {}), log=workspace.logs / "upper.log")
"""


def test_a_killed_flow_leaves_no_process_after_ten_seconds_and_holds_the_lock_until_then(toy: Path) -> None:
    start_of_long_stage(toy)
    flow = subprocess.Popen([sys.executable, "-c", FLOW], cwd=toy)
    assert wait_for(lambda: len(stage_pids(toy)) == 2, 240)
    flow.kill()
    flow.wait()
    assert any(map(is_alive, stage_pids(toy)))
    assert supervisor._STAGE_SECONDS + supervisor._COMMAND_SECONDS < 10
    with run_lock(toy / "work/run.lock", wait_seconds=120):  # a busy machine takes longer
        assert not any(map(is_alive, stage_pids(toy)))


DATA_ERROR = "> python steps.py\nerror: raw.txt is bad\n  given:    bad\n  expected: good\n  do:       write good\n"
SEVERAL_LINES = "1 error:\n\nsteps: must be positive\n  got -1"


def failure(text: str, exit_code: int = 3, kills: int | None = None, name: str = "upper") -> ClozelineError:
    return failure_of(Ended(name, exit_code, text, "upper.log", kills))


@pytest.mark.parametrize(
    ("text", "problem", "given", "expected"),
    [
        (DATA_ERROR.replace("raw.txt is bad", "a first attempt failed") + DATA_ERROR, "raw.txt is bad", "bad", "good"),
        (DATA_ERROR.replace("given:    bad", f"given:    {SEVERAL_LINES}"), "raw.txt is bad", SEVERAL_LINES, "good"),
        (f"error: first\nfailed\nerror: {SEVERAL_LINES}\n  do: write good\n", SEVERAL_LINES, None, ""),
    ],
)
def test_a_failure_is_the_last_error_that_the_stage_raised_with_its_class(
    text: str, problem: str, given: str | None, expected: str
) -> None:
    error = failure(text)
    assert (type(error), error.problem) == (DataError, f"stage `upper`: {problem}")
    assert (error.given, error.expected, error.do) == (given, expected, "write good")
    assert error.is_reported, "the stage's own message is shown"
    assert type(failure(text, exit_code=75)) is TransientError, "which is tried again"


def test_a_killed_stage_is_reported_as_killed(toy: Path) -> None:
    (toy / "steps.py").write_text("import os; os.kill(os.getpid(), 9)")
    error = failure_of(reproduce(toy)[0])
    assert type(error) is ClozelineError
    assert error.problem == "stage `upper` was killed (signal 9) by a person or a program: memory did not run out"
    assert "run the same command again" in error.do
    assert str(toy / "work/logs/upper.log") in error.do


@pytest.mark.parametrize(
    ("exit_code", "kills", "told"),
    [
        (137, 1, "(signal 9): memory ran out; "),
        (-9, None, "(signal 9): by hand, or because memory ran out; "),  # no shell or torchrun waited for the stage
        (139, None, "exit code 139"),
        (-15, None, "exit code -15"),
    ],
)
def test_only_a_kill_is_blamed_on_memory(exit_code: int, kills: int | None, told: str) -> None:
    error = failure("Segmentation fault\n", exit_code, kills)
    assert (type(error), error.is_reported) == (ClozelineError, False)
    assert told in error.problem
    assert "upper.log" in error.do
    assert [("GiB" in error.problem), ("more memory" in error.do)] == [exit_code in {137, -9}] * 2
    of_task = failure("", 137, 1, "finetune@sts2016").do
    assert named_in(of_task) == ["finetune.sts2016.micro_batch_tokens", "finetune.sts2016.max_length"]


def test_the_logs_of_the_newest_runs_are_kept_and_files_that_belong_to_no_run(tmp_path: Path) -> None:
    # The names of the folders do not show the order.
    runs = [tmp_path / str(UUID(int=(number * 7919) % 2**32)) for number in range(1, NUM_KEPT + 4)]
    notes = tmp_path / "notes"
    for number, folder in enumerate([notes, *runs]):
        folder.mkdir()
        os.utime(folder, (number, number))
    for _ in range(2):
        forget_old_runs(tmp_path)
        assert {*tmp_path.iterdir()} == {*runs[3:], notes}
