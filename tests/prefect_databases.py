"""An empty database for Prefect servers that tests start."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.made_once import MadeOnce

PutDatabase = Callable[[Path], None]


@pytest.fixture(scope="session")
def put_prefect_database(made_once: MadeOnce, tmp_path_factory: pytest.TempPathFactory) -> PutDatabase:
    """`put_prefect_database(file)` writes the database that a Prefect server makes at its first start in 4 s.

    The server of tests/orchestration/test_prefect_adapter.py makes its own.
    """

    def migrate() -> Path:
        home = tmp_path_factory.mktemp("prefect")
        ours = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
        command = [sys.executable, "-m", "prefect", "server", "database", "upgrade", "--yes"]
        subprocess.run(command, env=ours | {"PREFECT_HOME": str(home)}, check=True, capture_output=True)
        return home

    def put(file: Path) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(made_once("prefect", migrate) / "prefect.db", file)

    return put
