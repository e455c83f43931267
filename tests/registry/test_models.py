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


@pytest.fixture
def address(workspace: Workspace) -> str:
    return workspace.defaults()["MLFLOW_TRACKING_URI"]


@pytest.fixture
def copied(template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    """Copy of the project whose database still has the old paths of the files."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    return Workspace(shutil.copytree(template, tmp_path / "copy"))


def test_own_reader_and_mlflow_return_the_same_versions_packages_and_names(workspace: Workspace, address: str) -> None:
    registry = Registry.open(address)
    for uri in URIS:
        told = find_version(registry, uri)
        assert models.live_in_own_database(address, uri) == told
        assert (told.served_on, told.int8_speedup) == (PROCESSOR, SPEEDUP)
        assert models.package_in_own_database(address, uri) == fetch_package(uri, workspace)
    for alias in ("champion", "previous", "candidate"):
        assert models.names_in_own_database(address, alias) == registry.names_with(alias)
    assert models.names_in_own_database(address, "champion") == [ENCODER]
    with contextlib.closing(sqlite3.connect(workspace.mlflow / "mlflow.db")) as connection:
        assert connection.execute("SELECT version_num FROM alembic_version").fetchall() == [(SCHEMA,)]
    for missing in (f"models:/{ENCODER}@nobody", f"models:/{ENCODER}/7", "models:/clozeline-none@champion"):
        assert models.live_in_own_database(address, missing) is None
        with pytest.raises(ArtifactError, match="has no "):
            models.fetch(missing, workspace)


def test_a_moved_alias_is_followed_and_a_moved_database_uses_the_files_beside_it(copied: Workspace) -> None:
    address = copied.defaults()["MLFLOW_TRACKING_URI"]
    for uri in URIS:
        package = models.package_in_own_database(address, uri)
        assert package
        assert package[0].is_relative_to(copied.mlflow)
        assert fetch_package(uri, copied) == package
    assert models.live_version(CHAMPION_URI, copied).version == "2"
    Registry.open(address).roll_back(ENCODER)
    assert models.live_version(CHAMPION_URI, copied).version == "1"
    assert models.fetch(CHAMPION_URI, copied).folder.is_relative_to(copied.mlflow)


def test_a_champion_is_found_without_importing_mlflow(workspace: Workspace) -> None:
    command = [sys.executable, "-c", WITHOUT_MLFLOW.format(uri=CHAMPION_URI)]
    ran = subprocess.run(command, cwd=workspace.root, stdout=subprocess.PIPE, text=True, check=True)
    assert json.loads(ran.stdout) == [[CHAMPION_URI], "2", "2", False]


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ("model_versions SET current_stage = 'Deleted_Internal' WHERE version = 2", (False, True, False, True)),
        ("model_versions SET storage_location = 's3://bucket/m' WHERE version = 2", (True, True, False, True)),
        ("alembic_version SET version_num = 'ffffffffffff'", (False, False, False, False)),
    ],
)
def test_what_the_own_reader_does_not_know_is_left_to_mlflow(
    copied: Workspace, change: str, found: tuple[bool, ...]
) -> None:
    """Whether it finds the champion, version 1, the files of the champion, and the names with an alias."""
    with contextlib.closing(sqlite3.connect(copied.mlflow / "mlflow.db")) as connection, connection:
        connection.execute(f"UPDATE {change}")
    address = copied.defaults()["MLFLOW_TRACKING_URI"]
    told = (
        models.live_in_own_database(address, CHAMPION_URI),
        models.live_in_own_database(address, f"models:/{ENCODER}/1"),
        models.package_in_own_database(address, CHAMPION_URI),
        models.names_in_own_database(address, "champion"),
    )
    assert tuple(one is not None for one in told) == found


@pytest.mark.parametrize("address", ["http://127.0.0.1:5000", "postgresql://host/mlflow", "sqlite:////nowhere/m.db"])
def test_other_registries_and_mlflows_workspaces_are_left_to_mlflow(
    address: str, copied: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = copied.defaults()["MLFLOW_TRACKING_URI"]
    with monkeypatch.context() as inside:
        inside.setenv("MLFLOW_WORKSPACE", "team")
        assert models.live_in_own_database(own, CHAMPION_URI) is None
    assert models.live_in_own_database(own, CHAMPION_URI)
    for content in (b"", b"this is no database" * 100):
        (copied.mlflow / "mlflow.db").write_bytes(content)
        for other in (own, address):
            assert models.live_in_own_database(other, CHAMPION_URI) is None
            assert models.names_in_own_database(other, "champion") is None


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    """Versions 1 and 2; version 1 is the champion."""
    registry = Registry.open(f"sqlite:///{tmp_path / 'mlflow.db'}")
    for number in "12":
        registry.register(ENCODER, source="s3://models/x", run_id="", package_sha256=number, description="")
    registry.promote(registry.version(ENCODER, "1"))
    return registry


def announced(registry: Registry, version: str) -> Announcement:
    found = registry.version(ENCODER, version).announcement
    assert found
    return found


def notice(announcement: Announcement) -> float:
    return announcement.serve_from_seconds - announcement.announced_seconds


def test_what_is_written_is_read_back_and_anything_else_is_no_announcement(registry: Registry) -> None:
    given = Announcement(1_700_000_000.25, 1_700_000_060.25)
    assert Announcement.parse(str(given)) == given
    assert str(given).startswith("2023-11-14T22:14:20.250000+00:00")
    for edited in ("", "soon", "2023-11-14T22:14:20+00:00", str(given).replace("2023", "x")):
        assert Announcement.parse(edited) is None
    registry.tag(registry.version(ENCODER, "1"), SERVE_FROM, "tomorrow")
    assert registry.version(ENCODER, "1").announcement is None, "an edited tag does not hide the version"


def test_the_first_champion_answers_at_once_and_each_later_one_after_its_notice(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert notice(announced(registry, "1")) == 0
    seen: list[Announcement | None] = []
    move = MlflowClient.set_registered_model_alias

    def looked(client: MlflowClient, name: str, alias: str, version: str) -> None:
        if alias == CHAMPION:
            seen.append(registry.version(name, version).announcement)
        move(client, name, alias, version)

    monkeypatch.setattr(MlflowClient, "set_registered_model_alias", looked)
    before = time.time()
    registry.promote(registry.version(ENCODER, "2"))
    promoted = announced(registry, "2")
    assert before <= promoted.announced_seconds <= time.time()
    assert seen == [promoted], "whoever sees the new champion sees its time"
    registry._follow(ENCODER, since=1)  # as a second process that finishes the same change
    assert announced(registry, "2") == promoted
    registry.roll_back(ENCODER)
    rolled_back = announced(registry, "1")
    assert rolled_back.announced_seconds > promoted.announced_seconds
    assert notice(promoted) == notice(rolled_back) == pytest.approx(60)


def test_the_notice_can_be_set_to_a_number_of_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    for given, seconds in (("", 60.0), ("5", 5.0), ("0", 0.0)):
        monkeypatch.setenv(NOTICE_VARIABLE, given)
        assert notice(Announcement.now()) == pytest.approx(seconds)
    for bad in ("-1", "soon", "inf", "nan"):
        monkeypatch.setenv(NOTICE_VARIABLE, bad)
        with pytest.raises(ParamsError, match=NOTICE_VARIABLE):
            Announcement.now()
