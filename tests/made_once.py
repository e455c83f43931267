"""Folders that take seconds to make and are the same in every worker: one worker makes each, all get a copy."""

import fcntl
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

MadeOnce = Callable[[str, Callable[[], Path]], Path]


@pytest.fixture(scope="session")
def made_once(tmp_path_factory: pytest.TempPathFactory) -> MadeOnce:
    """`made_once(name, make)`: this worker's copy of the folder that `make()` returns, in whichever worker it ran.

    Other workers that need the folder wait meanwhile; if `make` fails, the next worker tries.
    """
    own = tmp_path_factory.getbasetemp()
    shared = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "made-once"
    shared.mkdir(exist_ok=True)

    def made_once(name: str, make: Callable[[], Path]) -> Path:
        kept = shared / name
        with (shared / f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not kept.exists():
                shutil.copytree(make(), shared / f"{name}.partial", dirs_exist_ok=True)
                (shared / f"{name}.partial").rename(kept)
        return shutil.copytree(kept, tmp_path_factory.mktemp("copy") / name)

    return made_once
