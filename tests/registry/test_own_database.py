"""Claim: the database's own tables give the same answers as MLflow, and every unusual case is left to MLflow."""

import contextlib
import json
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from clozeline.registry import models, own_database
from clozeline.registry.versions import Registry, fetch_package, find_version
from clozeline.system.errors import ArtifactError
from clozeline.system.workspace import Workspace
from clozeline.tracking.addresses import SCHEMA
from tests.make.stores import ENCODER, PROCESSOR, SPEEDUP, write_registry

CHAMPION = f"models:/{ENCODER}@champion"
URIS = [CHAMPION, f"models:/{ENCODER}@previous", f"models:/{ENCODER}/1", f"models:/{ENCODER}/2"]
WITHOUT_MLFLOW = """
import json, sys
from pathlib import Path
from clozeline.registry import models
from clozeline.system.workspace import Workspace
here = Workspace(Path.cwd())
told = [models.fetch("{uri}", here).version.version, models.live_version("{uri}", here).version]
print(json.dumps([models.champions(here), *told, "mlflow" in sys.modules]))
"""


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("project")
    write_registry(root)
    return root


@pytest.fixture
def workspace(template: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    return Workspace(template)


def address_of(workspace: Workspace) -> str:
    return workspace.defaults()["MLFLOW_TRACKING_URI"]


def execute(workspace: Workspace, statement: str) -> None:
    with contextlib.closing(sqlite3.connect(workspace.mlflow / "mlflow.db")) as connection, connection:
        connection.execute(statement)


@pytest.fixture
def copied(template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    """Copy of the project whose database still has the old paths of the files."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    shutil.copytree(template, tmp_path / "copy")
    return Workspace(tmp_path / "copy")


@pytest.mark.parametrize("uri", URIS)
def test_own_reader_and_mlflow_return_the_same_version(workspace: Workspace, uri: str) -> None:
    found = own_database.live(address_of(workspace), uri)
    told = find_version(Registry.open(address_of(workspace)), uri)
    assert found == told
    assert (told.served_on, told.int8_speedup) == (PROCESSOR, SPEEDUP)
    assert own_database.package(address_of(workspace), uri) == fetch_package(uri, workspace)


def test_models_with_an_alias_match_mlflow_and_include_only_ours(workspace: Workspace) -> None:
    for alias in ("champion", "previous", "candidate"):
        told = Registry.open(address_of(workspace)).names_with(alias)
        assert own_database.names_with(address_of(workspace), alias) == told
    assert own_database.names_with(address_of(workspace), "champion") == [ENCODER]


def test_the_schema_of_the_reader_is_that_of_the_installed_mlflow(workspace: Workspace) -> None:
    with contextlib.closing(sqlite3.connect(workspace.mlflow / "mlflow.db")) as connection:
        assert connection.execute("SELECT version_num FROM alembic_version").fetchall() == [(SCHEMA,)]


def test_an_alias_is_followed_when_it_moves(template: Path, copied: Workspace) -> None:
    opened = Registry.open(address_of(copied))
    assert models.live_version(CHAMPION, copied).version == "2"
    opened.roll_back(ENCODER)
    assert models.live_version(CHAMPION, copied).version == "1"
    assert models.fetch(CHAMPION, copied).folder.is_relative_to(copied.mlflow)


def test_a_champion_is_found_without_importing_mlflow(workspace: Workspace) -> None:
    command = [sys.executable, "-c", WITHOUT_MLFLOW.format(uri=CHAMPION)]
    ran = subprocess.run(command, cwd=workspace.root, stdout=subprocess.PIPE, text=True, check=True)
    assert json.loads(ran.stdout) == [[CHAMPION], "2", "2", False]


@pytest.mark.parametrize(
    "uri", [f"models:/{ENCODER}@nobody", f"models:/{ENCODER}/7", "models:/clozeline-none@champion"]
)
def test_missing_models_and_aliases_are_reported_by_mlflow(workspace: Workspace, uri: str) -> None:
    assert own_database.live(address_of(workspace), uri) is None
    with pytest.raises(ArtifactError, match="the registry has no"):
        models.fetch(uri, workspace)


def test_a_version_that_was_deleted_is_not_served(copied: Workspace) -> None:
    execute(copied, "UPDATE model_versions SET current_stage = 'Deleted_Internal' WHERE version = 2")
    assert own_database.live(address_of(copied), CHAMPION) is None
    assert own_database.live(address_of(copied), f"models:/{ENCODER}/1") is not None


def test_files_in_other_places_are_left_to_mlflow(copied: Workspace) -> None:
    execute(copied, "UPDATE model_versions SET storage_location = 's3://bucket/m' WHERE version = 2")
    assert own_database.package(address_of(copied), CHAMPION) is None
    assert own_database.live(address_of(copied), CHAMPION) is not None


@pytest.mark.parametrize("uri", URIS)
def test_a_moved_database_uses_the_files_beside_it(copied: Workspace, uri: str) -> None:
    package = own_database.package(address_of(copied), uri)
    assert package
    assert package.folder.is_relative_to(copied.mlflow)
    assert fetch_package(uri, copied) == package


def test_a_database_of_another_schema_is_left_to_mlflow(copied: Workspace) -> None:
    execute(copied, "UPDATE alembic_version SET version_num = 'ffffffffffff'")
    assert own_database.live(address_of(copied), CHAMPION) is None
    assert own_database.names_with(address_of(copied), "champion") is None


@pytest.mark.parametrize("content", [b"", b"this is no database" * 100])
def test_a_file_that_is_not_a_database_is_left_to_mlflow(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "mlflow.db").write_bytes(content)
    assert own_database.live(f"sqlite:///{tmp_path / 'mlflow.db'}", CHAMPION) is None


@pytest.mark.parametrize("address", ["http://127.0.0.1:5000", "postgresql://host/mlflow", "sqlite:////nowhere/m.db"])
def test_other_registries_are_left_to_mlflow(address: str) -> None:
    assert own_database.live(address, CHAMPION) is None
    assert own_database.names_with(address, "champion") is None


def test_the_own_reader_is_not_used_with_mlflow_workspaces(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_WORKSPACE", "team")
    assert own_database.live(address_of(workspace), CHAMPION) is None
