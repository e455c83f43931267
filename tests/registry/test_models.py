"""Claim: the database's own tables give the same answers as MLflow, and every unusual case is left to MLflow."""

import contextlib
import json
import shutil
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest
from mlflow.tracking import MlflowClient

from clozeline.registry import models
from clozeline.registry.models import CHAMPION, NOTICE_VARIABLE, SERVE_FROM, Announcement
from clozeline.registry.versions import Registry, fetch_package, find_version
from clozeline.system.errors import ArtifactError, ParamsError
from clozeline.system.workspace import Workspace
from clozeline.tracking.addresses import SCHEMA
from tests.make.stores import ENCODER, PROCESSOR, SPEEDUP, write_registry

CHAMPION_URI = f"models:/{ENCODER}@champion"
URIS = [CHAMPION_URI, f"models:/{ENCODER}@previous", f"models:/{ENCODER}/1", f"models:/{ENCODER}/2"]
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
    found = models.live_in_own_database(address_of(workspace), uri)
    told = find_version(Registry.open(address_of(workspace)), uri)
    assert found == told
    assert (told.served_on, told.int8_speedup) == (PROCESSOR, SPEEDUP)
    assert models.package_in_own_database(address_of(workspace), uri) == fetch_package(uri, workspace)


def test_models_with_an_alias_match_mlflow_and_include_only_ours(workspace: Workspace) -> None:
    for alias in ("champion", "previous", "candidate"):
        told = Registry.open(address_of(workspace)).names_with(alias)
        assert models.names_in_own_database(address_of(workspace), alias) == told
    assert models.names_in_own_database(address_of(workspace), "champion") == [ENCODER]


def test_the_schema_of_the_reader_is_that_of_the_installed_mlflow(workspace: Workspace) -> None:
    with contextlib.closing(sqlite3.connect(workspace.mlflow / "mlflow.db")) as connection:
        assert connection.execute("SELECT version_num FROM alembic_version").fetchall() == [(SCHEMA,)]


def test_an_alias_is_followed_when_it_moves(template: Path, copied: Workspace) -> None:
    opened = Registry.open(address_of(copied))
    assert models.live_version(CHAMPION_URI, copied).version == "2"
    opened.roll_back(ENCODER)
    assert models.live_version(CHAMPION_URI, copied).version == "1"
    assert models.fetch(CHAMPION_URI, copied).folder.is_relative_to(copied.mlflow)


def test_a_champion_is_found_without_importing_mlflow(workspace: Workspace) -> None:
    command = [sys.executable, "-c", WITHOUT_MLFLOW.format(uri=CHAMPION_URI)]
    ran = subprocess.run(command, cwd=workspace.root, stdout=subprocess.PIPE, text=True, check=True)
    assert json.loads(ran.stdout) == [[CHAMPION_URI], "2", "2", False]


@pytest.mark.parametrize(
    "uri", [f"models:/{ENCODER}@nobody", f"models:/{ENCODER}/7", "models:/clozeline-none@champion"]
)
def test_missing_models_and_aliases_are_reported_by_mlflow(workspace: Workspace, uri: str) -> None:
    assert models.live_in_own_database(address_of(workspace), uri) is None
    with pytest.raises(ArtifactError, match="has no "):
        models.fetch(uri, workspace)


def test_a_version_that_was_deleted_is_not_served(copied: Workspace) -> None:
    execute(copied, "UPDATE model_versions SET current_stage = 'Deleted_Internal' WHERE version = 2")
    assert models.live_in_own_database(address_of(copied), CHAMPION_URI) is None
    assert models.live_in_own_database(address_of(copied), f"models:/{ENCODER}/1") is not None


def test_files_in_other_places_are_left_to_mlflow(copied: Workspace) -> None:
    execute(copied, "UPDATE model_versions SET storage_location = 's3://bucket/m' WHERE version = 2")
    assert models.package_in_own_database(address_of(copied), CHAMPION_URI) is None
    assert models.live_in_own_database(address_of(copied), CHAMPION_URI) is not None


@pytest.mark.parametrize("uri", URIS)
def test_a_moved_database_uses_the_files_beside_it(copied: Workspace, uri: str) -> None:
    package = models.package_in_own_database(address_of(copied), uri)
    assert package
    assert package[0].is_relative_to(copied.mlflow)
    assert fetch_package(uri, copied) == package


def test_a_database_of_another_schema_is_left_to_mlflow(copied: Workspace) -> None:
    execute(copied, "UPDATE alembic_version SET version_num = 'ffffffffffff'")
    assert models.live_in_own_database(address_of(copied), CHAMPION_URI) is None
    assert models.names_in_own_database(address_of(copied), "champion") is None


@pytest.mark.parametrize("content", [b"", b"this is no database" * 100])
def test_a_file_that_is_not_a_database_is_left_to_mlflow(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "mlflow.db").write_bytes(content)
    assert models.live_in_own_database(f"sqlite:///{tmp_path / 'mlflow.db'}", CHAMPION_URI) is None


@pytest.mark.parametrize("address", ["http://127.0.0.1:5000", "postgresql://host/mlflow", "sqlite:////nowhere/m.db"])
def test_other_registries_are_left_to_mlflow(address: str) -> None:
    assert models.live_in_own_database(address, CHAMPION_URI) is None
    assert models.names_in_own_database(address, "champion") is None


def test_the_own_reader_is_not_used_with_mlflow_workspaces(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_WORKSPACE", "team")
    assert models.live_in_own_database(address_of(workspace), CHAMPION_URI) is None


NAME = "clozeline-encoder"


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    """Versions 1 and 2; no champion."""
    registry = Registry.open(f"sqlite:///{tmp_path / 'mlflow.db'}")
    for number in "12":
        registry.register(NAME, source="s3://models/x", run_id="", package_sha256=number, description="")
    return registry


def announced(registry: Registry, version: str) -> Announcement:
    found = registry.version(NAME, version).announcement
    assert found
    return found


def test_what_is_written_is_read_back_and_anything_else_is_no_announcement() -> None:
    given = Announcement(1_700_000_000.25, 1_700_000_060.25)
    assert Announcement.parse(str(given)) == given
    assert str(given).startswith("2023-11-14T22:14:20.250000+00:00")
    for edited in ("", "soon", "2023-11-14T22:14:20+00:00", str(given).replace("2023", "x")):
        assert Announcement.parse(edited) is None


def test_the_first_champion_answers_at_once_and_each_later_one_after_its_notice(registry: Registry) -> None:
    registry.promote(registry.version(NAME, "1"))
    assert announced(registry, "1").serve_from_seconds == announced(registry, "1").announced_seconds
    before = time.time()
    registry.promote(registry.version(NAME, "2"))
    promoted = announced(registry, "2")
    assert before <= promoted.announced_seconds <= time.time()
    assert promoted.serve_from_seconds - promoted.announced_seconds == pytest.approx(60)
    registry.roll_back(NAME)
    rolled_back = announced(registry, "1")
    assert rolled_back.announced_seconds > promoted.announced_seconds
    assert rolled_back.serve_from_seconds - rolled_back.announced_seconds == pytest.approx(60)


def test_whoever_sees_the_new_champion_sees_its_time(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    registry.promote(registry.version(NAME, "1"))
    seen: list[Announcement | None] = []
    move = MlflowClient.set_registered_model_alias

    def looked(client: MlflowClient, name: str, alias: str, version: str) -> None:
        if alias == CHAMPION:
            seen.append(registry.version(name, version).announcement)
        move(client, name, alias, version)

    monkeypatch.setattr(MlflowClient, "set_registered_model_alias", looked)
    registry.promote(registry.version(NAME, "2"))
    assert seen == [announced(registry, "2")]


def test_a_change_that_is_finished_later_does_not_postpone_the_turn_of_its_champion(registry: Registry) -> None:
    registry.promote(registry.version(NAME, "1"))
    registry.promote(registry.version(NAME, "2"))
    first = announced(registry, "2")
    registry._follow(NAME, since=1)  # as a second process that finishes the same change
    assert announced(registry, "2") == first


@pytest.mark.parametrize(("given", "seconds"), [("", 60.0), ("5", 5.0), ("0", 0.0)])
def test_the_notice_can_be_set(given: str, seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(NOTICE_VARIABLE, given)
    now = Announcement.now()
    assert now.serve_from_seconds - now.announced_seconds == pytest.approx(seconds)


@pytest.mark.parametrize("given", ["-1", "soon", "inf", "nan"])
def test_a_notice_that_is_no_time_is_refused(given: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(NOTICE_VARIABLE, given)
    with pytest.raises(ParamsError, match="not a number of seconds"):
        Announcement.now()


def test_an_edited_tag_does_not_hide_the_version(registry: Registry) -> None:
    registry.tag(registry.version(NAME, "1"), SERVE_FROM, "tomorrow")
    assert registry.version(NAME, "1").announcement is None
