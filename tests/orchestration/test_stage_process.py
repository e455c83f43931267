"""A stage runs as a process tree that streams its lines and never outlives the flow."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from uuid import UUID

import pytest
from dvc.repo import Repo

from clozeline.orchestration import stage_process
from clozeline.orchestration.stage_process import (
    NUM_KEPT,
    Ended,
    StageProcesses,
    failure_of,
    failure_of_killed,
    forget_old_runs,
    stage_environment,
)
from clozeline.params.project import Params
from clozeline.params.tasks import SECTIONS
from clozeline.system import supervisor
from clozeline.system.errors import ClozelineError, DataError, TransientError
from clozeline.system.workspace import Workspace, run_lock
from tests.make.params import is_knob_of, named_in
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


DATA_ERROR = """\
Running stage 'upper':
> python steps.py upper raw.txt upper.txt
error: raw.txt is bad
  given:    bad
  expected: good
  do:       write good
"""


def ended(text: str, exit_code: int = 3) -> Ended:
    return Ended(name="upper", exit_code=exit_code, text=text, log="work/logs/upper.log")


SEVERAL_LINES = "1 error:\n\nsteps: must be positive\n  got -1"


@pytest.mark.parametrize(
    ("text", "problem", "given", "expected"),
    [
        (DATA_ERROR, "raw.txt is bad", "bad", "good"),
        (DATA_ERROR.replace("raw.txt is bad", "a first attempt failed") + DATA_ERROR, "raw.txt is bad", "bad", "good"),
        (DATA_ERROR.replace("given:    bad", f"given:    {SEVERAL_LINES}"), "raw.txt is bad", SEVERAL_LINES, "good"),
        (f"error: first\nfailed\nerror: {SEVERAL_LINES}\n  do: write good\n", SEVERAL_LINES, None, ""),
    ],
)
def test_a_failure_is_the_last_error_that_the_stage_raised_with_its_class(
    text: str, problem: str, given: str | None, expected: str
) -> None:
    error = failure_of(ended(text))
    assert (type(error), error.problem) == (DataError, f"stage `upper`: {problem}")
    assert (error.given, error.expected, error.do) == (given, expected, "write good")
    assert error.is_reported, "the stage's own message is shown"


def test_exit_code_75_is_retried() -> None:
    assert type(failure_of(ended(DATA_ERROR, exit_code=75))) is TransientError


def test_a_crash_without_an_error_message_names_its_exit_code_and_the_log() -> None:
    error = failure_of(ended("Segmentation fault\n", exit_code=139))
    assert type(error) is ClozelineError
    assert "exit code 139" in error.problem
    assert not error.is_reported
    assert "work/logs/upper.log" in error.do


STAGES = Path(stage_process.__file__).parents[1] / "stages"
KILLING = """
import os, pathlib, psutil, time
me = psutil.Process()
dvc = next(parent for parent in me.parents() if "clozeline.versions.reproduce" in parent.cmdline())
victims = {"stage": me, "dvc": dvc}
os.kill(victims[pathlib.Path("raw.txt").read_text()].pid, 9)
time.sleep(20)
"""
KILLED = "was killed (signal 9)"


@pytest.mark.parametrize("killed", ["stage", "dvc"])
def test_a_killed_stage_or_dvc_is_reported_as_killed(toy: Path, killed: str) -> None:
    (toy / "steps.py").write_text(KILLING)
    (toy / "raw.txt").write_text(killed)
    ended, _ = reproduce(toy, "upper")
    error = failure_of(ended)
    assert type(error) is ClozelineError
    assert error.problem == f"stage `upper` {KILLED} by a person or a program: memory did not run out"
    assert "run the same command again" in error.do
    assert "more memory" not in error.do
    assert str(toy / "work/logs/upper.log") in error.do


@pytest.mark.parametrize(("kills", "cause"), [(1, "memory ran out"), (None, "by hand, or because memory ran out")])
def test_a_kill_is_blamed_on_memory_if_the_kernel_counts_one_or_has_no_counter(kills: int | None, cause: str) -> None:
    error = failure_of(Ended("upper", 137, "", "upper.log", kills))
    assert error.problem.startswith(f"stage `upper` {KILLED}: {cause}; ")
    assert "GiB" in error.problem
    assert "more memory" in error.do


@pytest.mark.parametrize("code", [-9, 137])
def test_both_exit_codes_of_signal_9_are_recognized(code: int) -> None:
    """The exit code is -9 if a process waited for the stage, and 137 if a shell or torchrun did."""
    assert KILLED in str(failure_of(Ended("upper", code, "", "upper.log")))


@pytest.mark.parametrize("code", [1, -11, -15, 143])
def test_other_exit_codes_are_not_blamed_on_memory(code: int) -> None:
    assert "memory" not in str(failure_of(Ended("upper", code, "", "upper.log")))


def test_every_stage_named_in_the_settings_exists() -> None:
    assert stage_process._SETTINGS.keys() < {file.stem for file in STAGES.glob("[!_]*.py")}


@pytest.mark.parametrize(
    ("name", "named"),
    [
        ("pretrain", ["pretrain.micro_batch_tokens", "pretrain.gradient_checkpointing"]),
        ("evaluate", ["evaluate.max_length"]),
        ("preprocess", []),
        ("export@encoder", []),
    ],
)
def test_the_advice_names_params_of_the_killed_stage(name: str, named: list[str]) -> None:
    assert named_in(failure_of_killed(name, "x.log", 1).do) == named
    assert all(is_knob_of(Params, knob) for knob in named)


@pytest.mark.parametrize("kind", SECTIONS)
def test_the_advice_for_a_killed_task_names_params_of_every_kind(kind: str) -> None:
    named = named_in(failure_of_killed("finetune@sts2016", "x.log", 1).do)
    assert named == ["finetune.sts2016.micro_batch_tokens", "finetune.sts2016.max_length"]
    assert all(is_knob_of(SECTIONS[kind], knob.removeprefix("finetune.sts2016.")) for knob in named)


FLOW = """
from pathlib import Path
from clozeline.system.workspace import Workspace
from clozeline.orchestration.stage_process import failure_of
from clozeline.orchestration.stage_process import stage_environment
from clozeline.orchestration.stage_process import StageProcesses
workspace = Workspace(Path.cwd())
heard = []
ended = StageProcesses().reproduce("upper", root=workspace.root, environment=stage_environment(workspace, {}),
                                   log=workspace.logs / "upper.log", hear=heard.append)
print(type(failure_of(ended)).__name__, failure_of(ended).given)
print(len([line for line in heard if "half" in line]))
"""

STEP = r"""
import os, sys
assert sys.stderr.isatty()
assert os.get_terminal_size(sys.stderr.fileno()).columns == 93
sys.stderr.write("\r\x1b[31mhalf\x1b[0m\r\x1b[32mwhole\x1b[0m\n")
sys.stderr.write("error: it is bad\n  given:    worse\n  expected: good\n  do:       mend it\n")
sys.exit(3)
"""


def test_a_bar_is_drawn_and_the_log_keeps_its_last_state_and_the_error(toy: Path) -> None:
    (toy / "steps.py").write_text(STEP)
    ours, theirs = os.openpty()
    subprocess.run(["stty", "cols", "93"], stdin=theirs, check=True)
    flow = subprocess.Popen([sys.executable, "-c", FLOW], cwd=toy, stdout=subprocess.PIPE, stderr=theirs, text=True)
    os.close(theirs)
    said, _ = flow.communicate()
    shown = os.read(ours, 65_536)
    os.close(ours)
    assert b"\r\x1b[31mhalf\x1b[0m\r\x1b[32mwhole\x1b[0m" in shown
    assert said.split() == ["DataError", "worse", "0"]
    log = (toy / "work/logs/upper.log").read_text().splitlines()
    assert "whole" in log
    assert "error: it is bad" in log


def make_run(logs: Path, number: int) -> Path:
    """Make the folder of a run that ended `number` seconds after the first; its name does not show the order."""
    folder = logs / str(UUID(int=(number * 7919) % 2**32))
    folder.mkdir(parents=True)
    (folder / "upper.log").write_text("upper reads raw.txt\n")
    os.utime(folder, (number, number))
    return folder


def test_the_logs_of_the_newest_runs_are_kept(tmp_path: Path) -> None:
    runs = [make_run(tmp_path, number) for number in range(NUM_KEPT + 3)]
    forget_old_runs(tmp_path)
    assert {*tmp_path.iterdir()} == {*runs[3:]}
    forget_old_runs(tmp_path)
    assert {*tmp_path.iterdir()} == {*runs[3:]}


def test_files_that_belong_to_no_run_are_kept(tmp_path: Path) -> None:
    others = {tmp_path / "mlflow-server.log", tmp_path / "notes"}
    (tmp_path / "mlflow-server.log").touch()
    (tmp_path / "notes").mkdir()
    for path in others:
        os.utime(path, (0, 0))
    runs = [make_run(tmp_path, number) for number in range(1, NUM_KEPT + 2)]
    forget_old_runs(tmp_path)
    assert {*tmp_path.iterdir()} == {*runs[1:], *others}


def test_a_project_without_runs_has_no_logs_to_delete(tmp_path: Path) -> None:
    forget_old_runs(tmp_path / "logs")
    assert [*tmp_path.iterdir()] == []
