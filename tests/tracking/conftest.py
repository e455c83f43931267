"""A database of MLflow with an outbox beside it, and a server of MLflow."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from clozeline.tracking.delivery import WORKSPACE
from clozeline.tracking.mlflow import prepare
from clozeline.tracking.outbox import Outbox
from tests.make.servers import MlflowServer

TAGS = {WORKSPACE: "ours"}


@pytest.fixture(scope="session")
def empty_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An MLflow database with its tables, which take seconds to create."""
    path = tmp_path_factory.mktemp("empty") / "mlflow.db"
    prepare(f"sqlite:///{path}")
    return path


@pytest.fixture
def address(tmp_path: Path, empty_database: Path) -> str:
    """Address of a database of the test's own."""
    return f"sqlite:///{shutil.copy(empty_database, tmp_path)}"


@pytest.fixture
def outbox(tmp_path: Path) -> Outbox:
    return Outbox(tmp_path / "outbox")


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory, free_port: Callable[[], int]) -> Iterator[MlflowServer]:
    server = MlflowServer(tmp_path_factory.mktemp("server"), free_port())
    try:
        server.start()
        yield server
    finally:
        server.stop()
