"""What the adapter assumes of the installed MLflow, and databases that are moved, copied or damaged.

A failing test shows what an upgrade changed. A moved or copied project finds its own files, and writes nothing to the
old location.
"""

import contextlib
import shutil
import sqlite3
from pathlib import Path

import pytest
from mlflow.artifacts import download_artifacts
from mlflow.db import commands
from mlflow.exceptions import MlflowException
from mlflow.store.artifact import models_artifact_repo
from mlflow.store.entities import PagedList
from mlflow.tracking import MlflowClient
from mlflow.utils import mlflow_tags

from clozeline.records.package import read_manifest
from clozeline.registry.models import ROLLED_BACK, fetch
from clozeline.registry.publishing import Evidence, Publisher, example_texts
from clozeline.system.errors import ArtifactError
from clozeline.system.workspace import Workspace
from clozeline.tracking import mlflow as adapter
from clozeline.tracking.mlflow import experiment_id, prepare

NAME = "clozeline-encoder"
URI = f"models:/{NAME}@champion"


def test_only_a_database_with_another_schema_is_upgraded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, other = tmp_path / "mlflow.db", tmp_path / "other.db"
    called = []

    def upgrade(arguments: list[str], standalone_mode: bool) -> None:
        called.append(arguments)
        other.write_bytes(file.read_bytes())

    assert [parameter.name for parameter in commands.commands["upgrade"].params] == ["url"]
    monkeypatch.setattr(commands, "main", upgrade)
    adapter.client_of_database(f"sqlite:///{file}")
    assert called == []
    other.write_bytes(file.read_bytes())
    with contextlib.closing(sqlite3.connect(other)) as connection, connection:
        connection.execute("UPDATE alembic_version SET version_num = 'ffffffffffff'")
    with pytest.raises(MlflowException, match=adapter._OUTDATED):
        MlflowClient(f"sqlite:///{other}").search_experiments()
    assert adapter.client_of_database(f"sqlite:///{other}").search_experiments()
    assert called == [["upgrade", f"sqlite:///{other}"]]


def test_the_names_of_a_parent_and_of_the_note_in_a_loaded_model_are_those_of_mlflow_and_all_pages_are_read(
    tmp_path: Path,
) -> None:
    pages = {None: PagedList([1, 2], "next"), "next": PagedList([3], None)}
    assert list(adapter.every(lambda page_token: pages[page_token])) == [1, 2, 3]
    assert mlflow_tags.MLFLOW_PARENT_RUN_ID == adapter.PARENT_RUN
    assert models_artifact_repo.REGISTERED_MODEL_META_FILE_NAME == adapter._LOADED_AS
    assert adapter.loaded_as(tmp_path) is None
    (tmp_path / adapter._LOADED_AS).write_text(f"model_name: {NAME}\nmodel_version: '3'\n", encoding="utf-8")
    assert adapter.loaded_as(tmp_path) == (NAME, "3")


@pytest.fixture(params=["database", "server"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[MlflowClient, str | None]:
    """A client of MLflow, and the folder of its artifacts if it is no server's."""
    is_server = request.param == "server"
    address: str = request.getfixturevalue("server").url if is_server else request.getfixturevalue("address")
    return MlflowClient(address, registry_uri=address), None if is_server else (tmp_path / "artifacts").as_uri()


def test_a_missing_object_is_recognized_by_its_error_code(
    store: tuple[MlflowClient, str | None], tmp_path: Path
) -> None:
    client, folder = store
    client.create_registered_model("known")
    for ask in (
        lambda: client.get_registered_model("other"),
        lambda: client.get_model_version("known", "1"),
        lambda: client.get_model_version("known", "one"),
        lambda: client.get_model_version_by_alias("known", "champion"),
        lambda: client.get_model_version_by_alias("other", "champion"),
        lambda: client.get_run("0" * 32),
    ):
        with pytest.raises(MlflowException) as caught:
            ask()
        assert adapter.is_absent(caught.value)
    run = client.create_run(client.create_experiment("runs", artifact_location=folder))
    with pytest.raises(MlflowException) as caught:
        download_artifacts(
            f"{run.info.artifact_uri}/evidence", dst_path=str(tmp_path), tracking_uri=client.tracking_uri
        )
    assert adapter.files_are_gone(caught.value) is (folder is not None), "a server does not report missing files"
    with pytest.raises(MlflowException) as caught:
        client.create_registered_model("known")
    assert not adapter.is_absent(caught.value), "a refused request is not one for what is missing"


def test_files_of_a_run_are_listed_and_removed_while_the_run_stays(store: tuple[MlflowClient, str | None]) -> None:
    client, folder = store
    experiment = client.create_experiment("swept runs", artifact_location=folder)
    one, other = (client.create_run(experiment).info for _ in range(2))
    for run in (one, other):
        client.log_text(run.run_id, "12345", "a/b/c.txt")
        client.log_text(run.run_id, "123", "d.txt")
    assert set(adapter.stored_files(one.artifact_uri, client.tracking_uri)) == {("a/b/c.txt", 5), ("d.txt", 3)}
    for _ in range(2):  # a second removal finds nothing and does not fail
        adapter.remove_stored_files(one.artifact_uri, client.tracking_uri)
        assert list(adapter.stored_files(one.artifact_uri, client.tracking_uri)) == []
    assert client.get_run(one.run_id).info.lifecycle_stage == "active"
    assert len(set(adapter.stored_files(other.artifact_uri, client.tracking_uri))) == 2


def address_in(root: Path) -> str:
    return Workspace(root).defaults()["MLFLOW_TRACKING_URI"]


@pytest.fixture(autouse=True)
def own_tracking(monkeypatch: pytest.MonkeyPatch) -> None:
    """Undo after each test that `Publisher.check` sets MLflow's address for the whole process."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "")
    monkeypatch.delenv("MLFLOW_TRACKING_URI")


@pytest.fixture
def project(tmp_path: Path, encoder_package: Path) -> Path:
    """Project folder whose registry has one champion."""
    root = tmp_path / "here [1] & 100%"
    publisher = Publisher(address_in(root))
    version = publisher.publish(encoder_package, NAME, Evidence(files={"dvc.lock": Path(__file__)}, tags={}))
    publisher.registry.promote(version)
    return root


def test_a_moved_project_finds_its_files_and_a_release_there_makes_a_version_that_anyone_can_load(
    project: Path, encoder_package: Path
) -> None:
    registry = Publisher(address_in(project)).registry
    first = registry.version(NAME, "1")
    registry.tag(first, ROLLED_BACK, "true")
    there = project.rename(project.parent / "there")
    assert fetch(URI, Workspace(there)).folder.is_relative_to(there)
    publisher = Publisher(address_in(there))
    with publisher.evidence(publisher.registry.version(NAME, "1")) as evidence:
        assert (evidence / "dvc.lock").exists()
    again = publisher.publish(encoder_package, NAME, Evidence(files={}, tags={}))
    assert (again.version, again.package_sha256) == ("2", first.package_sha256)
    assert again.was_rolled_back, "what a person has set stays"
    publisher.check(again, example_texts(read_manifest(encoder_package)))
    assert publisher.publish(encoder_package, NAME, Evidence(files={}, tags={})) == again


def test_a_copied_project_does_not_write_into_the_original(project: Path) -> None:
    copy = shutil.copytree(project, project.parent / "copy")
    before = sorted(project.rglob("*"))
    client = prepare(address_in(copy))
    new = client.create_run(experiment_id(client, address_in(copy)))
    client.log_text(new.info.run_id, "text", "file.txt")
    assert len(list(copy.rglob("file.txt"))) == 1
    assert sorted(project.rglob("*")) == before
    assert fetch(URI, Workspace(project)).folder.is_relative_to(project)


def test_missing_files_are_not_mistaken_for_a_missing_version(project: Path) -> None:
    publisher = Publisher(address_in(project))
    shutil.rmtree(project / "work/mlflow/artifacts")
    with pytest.raises(ArtifactError, match=f"the files of {NAME} version 1 are gone") as caught:
        publisher.check(publisher.registry.version(NAME, "1"), ["text"])
    assert "clozeline release" not in caught.value.do


@pytest.mark.parametrize("kept", [0.7, 0.0003])
def test_a_truncated_database_is_reported_as_damaged_with_what_to_do(project: Path, kept: float) -> None:
    database = project / "work/mlflow/mlflow.db"
    content = database.read_bytes()
    database.write_bytes(content[: int(kept * len(content))])
    with pytest.raises(ArtifactError, match=r"database .*mlflow\.db .* is damaged") as caught:
        prepare(address_in(project))
    assert "rename mlflow.db" in caught.value.do
    database.rename(database.with_suffix(".db.damaged"))
    assert isinstance(prepare(address_in(project)), MlflowClient)
