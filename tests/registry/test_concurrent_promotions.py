"""Many processes that promote at once leave one champion and a complete history, on a server over either database."""

import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from clozeline.registry import CHAMPION, PREVIOUS
from clozeline.registry.versions import Registry
from tests.mlflow_server import MlflowServer
from tests.postgres_server import running_postgres

NAME = "clozeline-encoder"
NUM_PROCESSES = 20
FILE = Path(__file__).with_name("promoting.py")


@pytest.fixture(params=["SQLite", "PostgreSQL"])
def url(request: pytest.FixtureRequest, tmp_path: Path, free_port: Callable[[], int]) -> Iterator[str]:
    """Address of an MLflow server over this database."""
    if request.param == "SQLite":
        yield from serving(MlflowServer(tmp_path, free_port()))
        return
    with running_postgres(free_port()) as postgres:
        postgres.run("createdb", "--host", str(postgres.data), "--port", str(postgres.port), "-U", "postgres", "mlflow")
        database = f"postgresql+psycopg://postgres@/mlflow?host={postgres.data}&port={postgres.port}"
        yield from serving(MlflowServer(tmp_path, free_port(), database))


def serving(server: MlflowServer) -> Iterator[str]:
    try:
        server.start()
        yield server.url
    finally:
        server.stop()


def test_twenty_concurrent_promotions_leave_one_champion_and_a_complete_history(url: str) -> None:
    registry = Registry.open(url)
    for number in range(NUM_PROCESSES):
        registry.register(NAME, source="s3://models/x", run_id="", package_sha256=str(number), description="")
    command = [sys.executable, str(FILE), url, NAME, str(NUM_PROCESSES)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert Counter(done.stdout.split()) == {"1": 1, "0": NUM_PROCESSES - 1}, "only one may be the first\n" + done.stderr

    changes = registry.changes(NAME)
    assert sorted(int(change.after) for change in changes) == list(range(1, NUM_PROCESSES + 1))
    assert [change.before for change in changes] == ["", *(change.after for change in changes[:-1])]
    assert {change.why for change in changes} == {f"number {number}" for number in range(1, NUM_PROCESSES + 1)}
    assert all(change.who and change.kind == "promotion" for change in changes)
    champion, previous = registry.at(NAME, CHAMPION), registry.at(NAME, PREVIOUS)
    assert champion
    assert previous
    assert (champion.version, previous.version) == (changes[-1].after, changes[-1].before)
    assert registry.settle(NAME) == champion
