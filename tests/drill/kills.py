"""Kill `clozeline run` or `dvc push` at seeded random moments of every stage, repeat the command, and check the end;
and real outages: MLflow's and Prefect's servers are killed and start again later, a worker and its flow are killed.
"""

import os
import random
import shutil
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from clozeline.system.files import md5_of
from clozeline.system.workspace import Workspace
from clozeline.tracking.runs import deliver_waiting
from tests.drill import project
from tests.drill.prefect import Prefect, prefect_over
from tests.drill.project import STAGES, make_project, orphans, run_command, said, start, wait_for_stage
from tests.make.processes import wait_for
from tests.make.servers import MlflowServer, held_ports

WAYS: dict[str, Callable[[subprocess.Popen[bytes]], None]] = {
    "-9": lambda process: process.kill(),
    "TERM": lambda process: process.terminate(),
    "-9 to the group": lambda process: os.killpg(process.pid, signal.SIGKILL),
}
_LONGEST_SECONDS = 1800.0


@dataclass
class Tally:
    """Counts of kills by kind, and their results."""

    rounds: int = 0
    survived: int = 0
    orphans: int = 0
    different_bytes: int = 0
    kills: Counter[str] = field(default_factory=Counter)  # kills by place and way
    faults: list[str] = field(default_factory=list)

    @property
    def counts(self) -> dict[str, int]:
        """Figures of the last line."""
        return {name: value for name, value in vars(self).items() if isinstance(value, int)}

    @property
    def all_survived(self) -> bool:
        return self.survived == self.rounds and not (self.orphans or self.different_bytes or self.faults)

    def add_round(self, left: Sequence[str], *, is_same: bool = True, fault: str = "") -> None:
        """Count a round that left these processes."""
        self.rounds += 1
        self.orphans += len(left)
        self.different_bytes += not is_same
        self.survived += is_same and not left and not fault
        self.faults += [fault] if fault else []


def drill_runs(folder: Path, rounds: int, seed: int, tally: Tally) -> None:
    """Kill a run once in each round, at the next stage and in the next way; a run that ends is started again."""
    chance = random.Random(seed)
    folder.mkdir()
    pristine = make_project(folder / "pristine")
    reference = project.copy_of(pristine, folder / "reference")
    assert run_command(reference).wait(_LONGEST_SECONDS) == 0, said(reference)
    wanted = project.digest(reference)
    home = Workspace(pristine).prefect
    home.mkdir(parents=True)
    shutil.copy(Workspace(reference).prefect / "prefect.db", home)  # a server takes 4 s to make a new one
    root: Path | None = None
    pending = 0  # kills since the last check
    for number in range(rounds):
        root = root or project.copy_of(pristine, folder / f"from-{number}")
        place = (seed + number) % len(STAGES)
        process = run_command(root)
        wait_for_stage(root, STAGES[place:], lambda process=process: process.poll() is not None, _LONGEST_SECONDS)
        _kill(process, f"stage {STAGES[place]}", chance, 2, tally)
        tally.rounds += 1
        pending += 1
        left = orphans(root)
        tally.orphans += len(left)
        if process.returncode == 0 or number == rounds - 1:
            _check(root, wanted, pending, left, tally)
            root, pending = None, 0


def _check(root: Path, wanted: str, pending: int, left: list[str], tally: Tally) -> None:
    """Repeat the command to its end, and compare."""
    ended = run_command(root).wait(_LONGEST_SECONDS)
    left = left + orphans(root)
    is_same = ended == 0 and project.digest(root) == wanted
    tally.different_bytes += not is_same
    address = Workspace(root).defaults()["MLFLOW_TRACKING_URI"]
    fault = _fault_of(root.parent.name, root, said(root)[-3000:] if ended else "", address)
    tally.faults += [fault] if fault else []
    tally.survived += pending if is_same and not left and not fault else 0


def _fault_of(what: str, root: Path, fault: str, tracking_uri: str) -> str:
    """Return `fault`, or else what the finished run left behind."""
    try:
        assert not fault, fault
        project.require_clean(root, tracking_uri)
    except AssertionError as error:
        return f"{what}: {error}"
    return ""


def drill_pushes(folder: Path, rounds: int, seed: int, tally: Tally) -> None:
    """Kill `dvc push` to a folder at random moments; the next push completes it."""
    chance = random.Random(seed)
    folder.mkdir()
    root = make_project(folder)
    (root / "many").mkdir()
    for number in range(400):
        (root / "many" / f"{number}.txt").write_text(str(number) * 500)
    remote = folder / "remote"
    for command in (("add", "many"), ("remote", "add", "-d", "store", str(remote))):
        assert start(root, "dvc", *command).wait(_LONGEST_SECONDS) == 0, said(root)
    for _ in range(rounds):
        process = start(root, "dvc", "push")
        wait_for(lambda process=process: remote.exists() or process.poll() is not None, _LONGEST_SECONDS)
        _kill(process, "push", chance, 0.5, tally)
        left = orphans(root)
        ended = start(root, "dvc", "push").wait(_LONGEST_SECONDS)
        is_same = _whole_files(remote) == 401  # 400 files and their list
        tally.add_round(left, is_same=is_same, fault=said(root)[-3000:] if ended else "")
        shutil.rmtree(remote)


def _kill(process: subprocess.Popen[bytes], what: str, chance: random.Random, seconds: float, tally: Tally) -> None:
    """Kill a process in a random way, in so many seconds at most, unless it ends before; wait for its end."""
    way = chance.choice(list(WAYS))
    time.sleep(chance.uniform(0, seconds))
    if process.poll() is None:
        WAYS[way](process)
        tally.kills[f"{what}, {way}"] += 1
    process.wait(_LONGEST_SECONDS)


def _whole_files(remote: Path) -> int:
    """Return the number of files in the remote whose content has the hash in their name."""
    files = [path for path in remote.rglob("*") if path.is_file()]
    return sum(md5_of(path) == (path.parent.name + path.name)[:32] for path in files)


_STEP_SECONDS = 0.25  # of a training in an outage


def drill_mlflow(folder: Path, outage_seconds: float, tally: Tally) -> None:
    """Kill MLflow's server in the middle of a training that is longer than the outage."""
    (folder / "server").mkdir(parents=True)
    steps = int((outage_seconds + 20) / _STEP_SECONDS)
    root = make_project(folder / "project", steps=steps, step_seconds=_STEP_SECONDS)
    with held_ports() as free_port:
        server = MlflowServer(folder / "server", free_port())
        try:
            server.start()
            run = run_command(root, {"MLFLOW_TRACKING_URI": server.url})
            wait_for((root / "work/checkpoint").exists, _LONGEST_SECONDS)
            server.stop()
            time.sleep(outage_seconds)
            server.start()
            ended = run.wait(outage_seconds + _LONGEST_SECONDS)
            fault = "" if ended == 0 else said(root)[-3000:]
            deliver_waiting(root / "work/outbox", server.url)  # as the next run does if this one ended early
            _count(tally, f"MLflow's server, for {outage_seconds:.0f} s", root, orphans(root), fault, server.url)
        finally:
            server.stop()


def drill_prefect(folder: Path, outage_seconds: float, tally: Tally) -> None:
    """Kill the server during a training and start it again; then kill the worker and its flow in another run."""
    root = make_project(
        folder / "project", steps=int((outage_seconds + 150) / _STEP_SECONDS), step_seconds=_STEP_SECONDS
    )
    with prefect_over(root, folder / "home") as prefect:
        _kill_server(prefect, outage_seconds, tally)
        whole = project.digest(root)
        (root / "model.txt").unlink()
        shutil.rmtree(root / ".dvc/cache")  # so that the same training has to run again
        _kill_worker(prefect, outage_seconds, tally)
        tally.different_bytes += project.digest(root) != whole


def _kill_server(prefect: Prefect, outage_seconds: float, tally: Tally) -> None:
    run = prefect.begin()
    assert wait_for((prefect.root / "work/checkpoint").exists, _LONGEST_SECONDS), prefect.logs()
    prefect.kill("server")
    time.sleep(outage_seconds)
    prefect.start_server()
    seen = {prefect.state(run)}

    def has_ended() -> bool:
        seen.add(prefect.state(run))
        return not seen <= {"RUNNING", "PENDING"}

    wait_for(has_ended, outage_seconds + _LONGEST_SECONDS)
    runs = prefect.runs()
    fault = "" if seen == {"RUNNING", "COMPLETED"} and len(runs) == 1 else f"states {seen}: {_told(runs)}"
    _count_flow(tally, f"Prefect's server, for {outage_seconds:.0f} s", prefect, fault)


def _kill_worker(prefect: Prefect, outage_seconds: float, tally: Tally) -> None:
    run = prefect.begin()
    assert wait_for((prefect.root / "work/checkpoint").exists, _LONGEST_SECONDS), prefect.logs()
    time.sleep(5)
    killed_at = time.monotonic()
    prefect.kill_worker_and_flow()
    prefect.start_worker()
    wait_for(lambda: prefect.state(run) == "CRASHED", 300)
    seconds = time.monotonic() - killed_at
    wait_for(lambda: prefect.runs()[-1]["state"]["type"] == "COMPLETED", outage_seconds + _LONGEST_SECONDS)
    runs = prefect.runs()
    states = [known["state"]["type"] for known in runs]
    fault = "" if states == ["COMPLETED", "CRASHED", "COMPLETED"] else _told(runs)
    _count_flow(tally, f"worker and flow: Crashed after {seconds:.0f} s, and run again", prefect, fault)


def _count_flow(tally: Tally, what: str, prefect: Prefect, fault: str) -> None:
    left = [line for line in project.processes_in(prefect.root) if "steps.py" in line or "reproduce" in line]
    address = f"sqlite:///{prefect.root / 'work/mlflow/mlflow.db'}"
    _count(tally, what, prefect.root, left, fault and f"{fault}\n{prefect.logs()}", address)


def _count(tally: Tally, what: str, root: Path, left: list[str], fault: str, tracking_uri: str) -> None:
    tally.kills[what] += 1
    tally.add_round(left, fault=_fault_of(what, root, fault or "; ".join(left), tracking_uri))


def _told(runs: list[dict[str, Any]]) -> str:
    return ", ".join(f"{run['name']} {run['state']['type']} ({run['state']['message']})" for run in runs)
