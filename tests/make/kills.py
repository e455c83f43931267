"""Kill a change at each of its writes, by an error in this process or by SIGKILL.

`python -m tests.make.kills sweep ROOT STORE` sweeps a project until a sweep ends, killing each at one file later
than the one before; it prints, as JSON, what each kill leaves dangling in the cache and in STORE. `… forget ROOT
TEXT` forgets a text until that ends, killing it later each time; it prints how often it was killed.
"""

import json
import os
import signal
import sys
from collections.abc import Callable, Iterable
from datetime import timedelta
from functools import partial
from itertools import count, takewhile
from pathlib import Path

import pytest
from mlflow import MlflowClient
from ruamel.yaml import YAML

from clozeline.orchestration.forgetting import forget
from clozeline.orchestration.garbage import sweep_project
from clozeline.system.workspace import Workspace


class KilledError(BaseException):
    """Stands for SIGKILL: no `except Exception` catches it."""


def is_killed(change: Callable[[], object], *, at_write: int, writes: Iterable[str]) -> bool:
    """Run `change`; every call of `writes` from number `at_write` on raises. Return False if it does fewer writes."""
    num_done = 0

    def counted(write: Callable[..., object]) -> Callable[..., object]:
        def run(*given: object, **named: object) -> object:
            nonlocal num_done
            if num_done == at_write:
                raise KilledError
            num_done += 1
            return write(*given, **named)

        return run

    with pytest.MonkeyPatch.context() as monkeypatch:
        for name in writes:
            monkeypatch.setattr(MlflowClient, name, counted(getattr(MlflowClient, name)))
        try:
            change()
        except KilledError:
            return True
    return False


# Events of Python's audit hook.
_REMOVING = {"os.remove", "os.rename", "shutil.rmtree"}
_SWEPT = (".dvc/cache/files", ".dvc/cache/runs", "store/files", "store/runs", "mlflow/artifacts")
_FORGOTTEN = (
    ".dvc/cache/",
    "store/",
    "/mlflow/artifacts",
    "/data/",
    "work/logs",
    "work/search",
    "/imports/",
    "/forgotten.lock",
)


def dangling(store: Path) -> list[str]:
    """Return the objects that a run or a list of files in a cache or remote leads to, but that are missing."""
    named = [entry["md5"] for path in store.rglob("*.dir") for entry in json.loads(path.read_bytes())]
    for run in (store / "runs").glob("*/*/*"):
        named += [out["md5"] for out in YAML(typ="safe").load(run)["outs"]]
    return [md5 for md5 in named if not (store / "files/md5" / md5[:2] / md5[2:]).exists()]


def is_killed_at(num_files: int, change: Callable[[], object], places: Iterable[str]) -> bool:
    """Call `change` in a child that is killed before it removes its file number `num_files` in one of `places`; return
    whether it was.
    """
    child = os.fork()
    if child:
        status = os.waitpid(child, 0)[1]
        assert status == 0 or os.WIFSIGNALED(status), f"it failed: {status}"
        return status != 0
    left = num_files

    def kill(event: str, given: tuple[object, ...]) -> None:
        nonlocal left
        if event in _REMOVING and any(place in str(given[0]) for place in places):
            left -= 1
            if left < 0:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(kill)
    change()
    os._exit(0)


def _sweep_until_it_ends(root: Path, store: Path) -> list[list[str]]:
    sweep = partial(sweep_project, Workspace(root), 2, timedelta(), shared=True, is_dry=False)
    kills = takewhile(lambda num_files: is_killed_at(num_files, sweep, _SWEPT), count(1))
    return [dangling(root / ".dvc/cache") + dangling(store) for _ in kills]


def _forget_until_it_ends(root: Path, text: str) -> int:
    forget_text = partial(forget, Workspace(root), text, 20_000, is_dry=False)
    kills = takewhile(lambda number: is_killed_at(2**number, forget_text, _FORGOTTEN), count())
    return sum(1 for _ in kills)


if __name__ == "__main__":
    verb, root, given = sys.argv[1:]
    told = (
        _sweep_until_it_ends(Path(root), Path(given)) if verb == "sweep" else _forget_until_it_ends(Path(root), given)
    )
    sys.stdout.write(f"\n{json.dumps(told)}\n")  # below what DVC says
