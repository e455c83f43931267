"""Claim: a task that is recorded never runs again, and what is recorded is whole."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

import psutil
import pytest

from clozeline.cluster.ledger import Done, FinishedTask, Item, Ledger, open_workers
from clozeline.system.errors import StorageError, TransientError
from clozeline.system.workers import Workers, worker_processes
from tests.conftest import PROJECT

# Items after this one are not done before the file `held` is gone.
HELD_FROM = 14
KILLED = """
import sys
from pathlib import Path
from clozeline.system.workers import worker_processes
from tests.cluster.test_ledger import items_of, ledger_at
log = Path(sys.argv[1])
with worker_processes(2) as workers:
    for number, _ in enumerate(ledger_at(log, workers=workers).run(items_of(log, range(40)))):
        print(number, flush=True)
"""


def logged(number: int, log: Path, lasting: bool, folder: Path) -> Done:
    """Square a number, slowly, and log that it was done."""
    time.sleep(0.05)
    while number > HELD_FROM and log.with_name("held").exists():
        time.sleep(0.05)
    (folder / "square.txt").write_text(str(number**2))
    with log.open("a") as file:
        file.write(f"{number}\n")
    return Done({"number": number}, lasting=lasting)


def overtaken(number: int, log: Path, lasting: bool, folder: Path) -> Done:
    """Log a number; meanwhile another attempt of the same task begins and ends."""
    if not log.exists():
        logged(number, log, lasting, folder)
        list(ledger_at(log).run([item_of(overtaken, number, log, lasting)]))
    return logged(number, log, lasting, folder)


def full_disk(number: int, log: Path, lasting: bool, folder: Path) -> Done:
    (folder / "part.txt").write_text("part")
    raise OSError(28, os.strerror(28))


def item_of(function: Callable[..., Done], number: int, log: Path, lasting: bool = True) -> Item:
    return Item(f"item {number}", [number], (), partial(function, number, log, lasting))


def items_of(log: Path, numbers: Iterable[int], lasting: bool = True) -> list[Item]:
    return [item_of(logged, number, log, lasting) for number in numbers]


def ledger_at(log: Path, code: str = "code", workers: Workers | None = None) -> Ledger:
    return Ledger(log.with_name("ledger"), code, workers or Workers(None, 1))


def run(log: Path, numbers: range = range(4), code: str = "code", *, lasting: bool = True) -> list[FinishedTask]:
    return list(ledger_at(log, code).run(items_of(log, numbers, lasting)))


def ran(log: Path) -> list[int]:
    """Return the numbers of the items that ran since the last call."""
    numbers = [int(line) for line in log.read_text().split()] if log.exists() else []
    log.write_text("")
    return sorted(numbers)


def squares(records: Iterable[FinishedTask]) -> list[int]:
    return [int((record.folder / "square.txt").read_text()) for record in records]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log.txt"


def test_a_recorded_task_does_not_run_again_with_the_same_code_and_only_the_named_records_are_kept(log: Path) -> None:
    first = run(log)
    assert squares(first) == [0, 1, 4, 9]
    assert [record.facts for record in first] == [{"number": number} for number in range(4)]
    assert (ran(log), [record.is_found for record in first]) == ([0, 1, 2, 3], [False] * 4)
    told = json.loads((first[3].folder / "record.json").read_text())
    assert told["function"].endswith("test_ledger.logged")
    assert (told["task"], told["code"], told["inputs"]) == ("item 3", "code", [3])
    assert told["sha256"].keys() == {"square.txt"}
    again = run(log, range(5))
    assert (ran(log), [record.is_found for record in again]) == ([4], [True] * 4 + [False])
    assert [record.folder for record in again[:4]] == [record.folder for record in first]
    run(log, code="other")
    assert ran(log) == [0, 1, 2, 3]
    ledger_at(log).keep_only({first[1].key})
    assert [path.name for path in log.with_name("ledger").glob("*/*")] == [first[1].key]


@pytest.mark.parametrize("damage", ["changed", "missing", "record"])
def test_a_task_whose_files_are_damaged_runs_again(log: Path, damage: str) -> None:
    square = run(log)[2].folder / "square.txt"
    ran(log)
    if damage == "missing":
        square.unlink()
    else:
        (square if damage == "changed" else square.with_name("record.json")).write_text("{")
    assert squares(run(log)) == [0, 1, 4, 9]
    assert ran(log) == [2]


@pytest.mark.parametrize("lasting", [True, False])
def test_two_attempts_of_a_task_that_end_together_leave_one_record(log: Path, lasting: bool) -> None:
    (record,) = ledger_at(log).run([item_of(overtaken, 3, log, lasting)])
    assert ran(log) == [3] * 3
    assert squares([record]) == [9]
    assert [path.name for path in record.folder.parent.iterdir()] == [record.key]


def test_a_task_that_does_not_last_runs_again_and_one_that_finds_the_disk_full_leaves_nothing(log: Path) -> None:
    for _ in range(2):
        run(log, lasting=False)
    assert ran(log) == [0, 0, 1, 1, 2, 2, 3, 3]
    before = set(log.with_name("ledger").glob("*/*"))
    with pytest.raises(StorageError, match="no space left"):
        list(ledger_at(log).run([item_of(full_disk, 0, log)]))
    assert set(log.with_name("ledger").glob("*/*")) == before


def test_after_a_kill_only_the_rest_runs(log: Path) -> None:
    log.with_name("held").touch()  # however late we hear of the ninth item, some are left
    with subprocess.Popen(
        [sys.executable, "-c", KILLED, str(log)], stdout=subprocess.PIPE, text=True, cwd=PROJECT
    ) as killed:
        assert killed.stdout is not None
        while killed.stdout.readline().strip() != "9":
            assert killed.poll() is None
        workers_of_killed = psutil.Process(killed.pid).children(recursive=True)
        killed.kill()
    assert not psutil.wait_procs(workers_of_killed, timeout=60)[1], "its workers end with it"
    log.with_name("held").unlink()
    recorded = len(list(log.with_name("ledger").glob("*/*/record.json")))
    assert 10 <= recorded < 40
    ran(log)
    with worker_processes(2) as workers:
        records = list(ledger_at(log, workers=workers).run(items_of(log, range(40))))
    assert squares(records) == [number**2 for number in range(40)]
    assert len(ran(log)) == 40 - recorded


def test_a_cluster_that_does_not_answer_is_named_before_ray_is_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLOZELINE_CLUSTER", "ray://127.0.0.1:1")
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.delitem(sys.modules, "clozeline.cluster.ray_workers", raising=False)
    with pytest.raises(TransientError, match=r"127\.0\.0\.1:1"), open_workers(tmp_path):
        pass
