"""State that tests share: folders that one worker makes for all, databases that are migrated once, and what a test
must find as if it were the first.

A command sets variables, signal handlers or log levels for its whole process. A worker runs further files in that
process, and which ones is chance.
"""

import contextlib
import fcntl
import logging
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

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


def pytest_configure() -> None:
    _default_signals()


@pytest.fixture(autouse=True, scope="module")
def _state_of_the_file() -> Iterator[None]:
    """Same as `_own_state`, for the commands that fixtures of a whole file run."""
    with restored_state():
        yield


@pytest.fixture(autouse=True)
def _own_state() -> Iterator[None]:
    with restored_state():
        yield


@contextlib.contextmanager
def restored_state() -> Iterator[None]:
    """Start with default signals and from the same random state, whatever this process has drawn for earlier tests;
    restore what a command changes for its process.
    """
    torch = sys.modules.get("torch")
    variables, path, address, levels = _variables(), [*sys.path], _address_of_mlflow(), _levels()
    num_threads = torch.get_num_threads() if torch else 0
    _default_signals()
    if torch:
        torch.manual_seed(0)
    yield
    _default_signals()
    _restore_variables(variables)
    if sys.path != path:  # MLflow puts the code of each model first; what a package adds on its import stays
        sys.path[:] = [folder for folder in sys.path if folder in path or "site-packages" in folder]
    if _address_of_mlflow() != address:  # it has precedence over the variable that the next test sets
        sys.modules["mlflow"].set_tracking_uri(address)
    if torch:
        torch.set_num_threads(num_threads)
    _restore_levels(levels)


def _variables() -> dict[str, str]:
    """Return all variables but pytest's own, which it sets and removes itself."""
    return {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}


def _restore_variables(before: dict[str, str]) -> None:
    if (after := _variables()) != before:
        for name in after.keys() - before.keys():
            del os.environ[name]
        os.environ.update(before)


def _address_of_mlflow() -> str | None:
    return getattr(sys.modules.get("mlflow.tracking._tracking_service.utils"), "_tracking_uri", None)


def _default_signals() -> None:
    """Let the processes that tests start hear signals: a shell that runs us in the background, or `nohup`, switches
    some off, and so does a command that ends.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def _levels() -> dict[logging.Logger, int]:
    known = [logging.root, *logging.root.manager.loggerDict.values()]
    return {logger: logger.level for logger in known if isinstance(logger, logging.Logger)}


def _restore_levels(before: dict[logging.Logger, int]) -> None:
    for logger, now in _levels().items():
        is_ours = logger.name.startswith("clozeline")
        level = before.get(logger, logging.NOTSET if is_ours else now)
        if now != level:  # `setLevel` clears a cache of every logger there is: 50 ms after each test
            logger.setLevel(level)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Let MLflow copy its empty tables. To migrate a new file to them takes 0.85 s; a copy takes 0.02 s."""
    if "mlflow" in sys.modules and any(item.get_closest_marker("slow") for item in session.items):
        from mlflow.store.db import utils
        from mlflow.store.model_registry import sqlalchemy_store

        initialize = _copying(utils._initialize_tables)
        utils._initialize_tables = sqlalchemy_store._initialize_tables = initialize


def _copying(migrate: Callable[[Any], None]) -> Callable[[Any], None]:
    """Return `migrate`, which migrates the database of an engine, but for new files of SQLite only once."""
    tables = b""

    def initialize(engine: Any) -> None:
        nonlocal tables
        file = engine.url.database
        if engine.dialect.name != "sqlite" or not file:
            migrate(engine)
            return
        with contextlib.closing(sqlite3.connect(file)) as database:
            is_new = not database.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
            if is_new and tables:
                with contextlib.closing(sqlite3.connect(":memory:")) as made:
                    made.deserialize(tables)
                    made.backup(database)
                return
        migrate(engine)
        if is_new:
            with contextlib.closing(sqlite3.connect(file)) as database:
                tables = database.serialize()

    return initialize


PutDatabase = Callable[[Path], None]


@pytest.fixture(scope="session")
def put_prefect_database(made_once: MadeOnce, tmp_path_factory: pytest.TempPathFactory) -> PutDatabase:
    """`put_prefect_database(file)` writes the database that a Prefect server makes at its first start in 4 s.

    The servers of tests/orchestration/test_servers.py make their own.
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
