"""infra/postgres/backup.sh and restore.sh: an upgrade is taken back, and what cannot be restored is refused."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.make.servers import running_postgres

SCRIPTS = Path(__file__).parents[2] / "infra/postgres"
# Newest migration of MLflow 3.16.1's own tables.
OF_MLFLOW_3_16 = "b7e2c1a4d9f3"
TO_REVISION = """
import sys
from alembic import command
from mlflow.store.db.utils import _get_alembic_config
from mlflow.store.tracking.dbmodels.initial_models import Base
from sqlalchemy import create_engine
Base.metadata.create_all(create_engine(sys.argv[1]))
command.upgrade(_get_alembic_config(sys.argv[1]), sys.argv[2])
"""


@pytest.fixture(scope="module")
def environment(free_port: Callable[[], int], compose: Any) -> Iterator[dict[str, str]]:
    """Variables of the job `backup-databases`, for a server with the databases of compose.yaml."""
    port = free_port()
    with running_postgres(port) as server:
        variables = compose.variables("backup-databases") | {"PGHOST": "127.0.0.1", "PGPORT": str(port)}
        variables["PATH"] = os.environ["PATH"]
        where = {"PGHOST": str(server.data), "POSTGRES_USER": "postgres"}
        subprocess.run(["bash", SCRIPTS / "create-databases.sh"], env=variables | where, check=True)
        yield variables


def script(name: str, folder: Path, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    command = ["bash", str(SCRIPTS / name), str(folder)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def uri(environment: dict[str, str]) -> str:
    password, port = environment["MLFLOW_DB_PASSWORD"], environment["PGPORT"]
    return f"postgresql+psycopg://mlflow:{password}@127.0.0.1:{port}/mlflow"


def query(environment: dict[str, str], sql: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(uri(environment).replace("+psycopg", ""), autocommit=True) as connection:
        found = connection.execute(sql)
        return found.fetchall() if found.description else []


def upgrade(environment: dict[str, str], revision: str) -> None:
    subprocess.run([sys.executable, "-c", TO_REVISION, uri(environment), revision], check=True, capture_output=True)


def test_a_database_of_the_previous_minor_is_upgraded_and_rolled_back(
    environment: dict[str, str], tmp_path: Path
) -> None:
    upgrade(environment, OF_MLFLOW_3_16)
    query(environment, "INSERT INTO experiments (experiment_id, name, lifecycle_stage) VALUES (7, 'old', 'active')")
    tables = "SELECT table_name FROM information_schema.tables WHERE table_schema = 'public' ORDER BY 1"
    before = query(environment, tables)
    saved = script("backup.sh", tmp_path, environment)
    assert saved.returncode == 0, saved.stderr
    upgrade(environment, "head")
    query(environment, "DELETE FROM experiments")
    assert query(environment, tables) != before
    restored = script("restore.sh", tmp_path, environment)
    assert restored.returncode == 0, restored.stderr
    assert query(environment, tables) == before
    assert query(environment, "SELECT version_num FROM alembic_version") == [(OF_MLFLOW_3_16,)]
    assert query(environment, "SELECT name FROM experiments") == [("old",)]
    upgrade(environment, "head")
    assert query(environment, "SELECT name FROM experiments") == [("old",)]


def test_seven_backups_are_kept_and_a_restore_in_use_or_of_a_damaged_dump_changes_nothing(
    environment: dict[str, str], tmp_path: Path
) -> None:
    def refused() -> tuple[int, str]:
        done = script("restore.sh", tmp_path, environment)
        return done.returncode, done.stderr

    query(environment, "CREATE TABLE kept (there boolean)")
    for day in range(1, 9):
        (tmp_path / f"2001-01-0{day}T00-00-00Z").mkdir()
    assert script("backup.sh", tmp_path, environment).returncode == 0
    names = sorted(path.name for path in tmp_path.iterdir())
    assert (len(names), names[0]) == (7, "2001-01-03T00-00-00Z")
    with psycopg.connect(uri(environment).replace("+psycopg", "")):
        code, told = refused()
    assert (code, "mlflow is in use, and nothing was changed" in told) == (3, True)
    (dump,) = tmp_path.glob("*Z/mlflow.dump")
    dump.write_bytes(dump.read_bytes()[:-200])
    code, told = refused()
    assert (code, "mlflow.dump is damaged, and nothing was changed" in told) == (4, True)
    assert query(environment, "SELECT * FROM kept") == []
