"""Kill `clozeline run` or `dvc push` at seeded random moments of every stage, repeat the command, and check the end."""

import hashlib
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

from clozeline.system.workspace import Workspace
from tests.drill import project
from tests.drill.project import STAGES, orphans, run_command, said, start, wait_for_stage
from tests.make.processes import wait_for

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
        names = ("rounds", "survived", "orphans", "different_bytes")
        return {name: getattr(self, name) for name in names}

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
    pristine = project.make_project(folder / "pristine")
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
    try:
        assert ended == 0, said(root)[-3000:]
        project.require_clean(root, Workspace(root).defaults()["MLFLOW_TRACKING_URI"])
    except AssertionError as error:
        tally.faults.append(f"{root.parent.name}: {error}")
    else:
        tally.survived += pending if is_same and not left else 0


def drill_pushes(folder: Path, rounds: int, seed: int, tally: Tally) -> None:
    """Kill `dvc push` to a folder at random moments; the next push completes it."""
    chance = random.Random(seed)
    folder.mkdir()
    root = project.make_project(folder)
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
    return sum(
        hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest() == (path.parent.name + path.name)[:32]
        for path in files
    )
