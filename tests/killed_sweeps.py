"""Sweep a project until a sweep ends, killing each (-9) at one file later than the one before.

`python -m tests.killed_sweeps ROOT STORE` prints, as JSON, what each kill leaves dangling in the cache and in STORE.
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

from ruamel.yaml import YAML

from clozeline.orchestration.garbage import Kept, sweep_project
from clozeline.system.workspace import Workspace

LAST_TWO = Kept(num_nights=2, min_age=timedelta())
_REMOVING = {"os.remove", "os.rename", "shutil.rmtree"}
"""Events of Python's audit hook."""
_SWEPT = (".dvc/cache/files", ".dvc/cache/runs", "store/files", "store/runs", "mlflow/artifacts")


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


if __name__ == "__main__":
    root, store = map(Path, sys.argv[1:])
    sweep = partial(sweep_project, Workspace(root), LAST_TWO, shared=True, is_dry=False)
    kills = takewhile(lambda num_files: is_killed_at(num_files, sweep, _SWEPT), count(1))
    sys.stdout.write(json.dumps([dangling(root / ".dvc/cache") + dangling(store) for _ in kills]))
