"""What the adapter assumes of the installed MLflow, and databases that are moved, copied or damaged.

A failing test shows what an upgrade changed. A moved or copied project finds its own files, and writes nothing to the
old location.
"""

import contextlib
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from mlflow.artifacts import download_artifacts
from mlflow.db import commands
from mlflow.exceptions import MlflowException
from mlflow.store.entities import PagedList
from mlflow.tracking import MlflowClient

from clozeline.records.package import read_manifest
from clozeline.registry.models import ROLLED_BACK, fetch
from clozeline.registry.publishing import Evidence, Publisher, example_texts
from clozeline.system.errors import ArtifactError
from clozeline.system.workspace import Workspace
from clozeline.tracking.mlflow import (
    _LOADED_AS,
    _OUTDATED,
    EXPERIMENT,
    PARENT_RUN,
    client_of_database,
    every,
    experiment_id,
    files_are_gone,
    is_absent,
    loaded_as,
    monitors,
    prepare,
    remove_stored_files,
    stored_files,
)


def test_mlflow_still_refuses_another_schema_with_the_expected_message(tmp_path: Path) -> None:
    file = tmp_path / "mlflow.db"
    MlflowClient(f"sqlite:///{file}").search_experiments()
    other = shifted(file, tmp_path / "other.db")
    with pytest.raises(MlflowException, match=_OUTDATED):
        MlflowClient(f"sqlite:///{other}").search_experiments()


def test_mlflow_still_has_an_upgrade_command_that_takes_the_address() -> None:
    assert [parameter.name for parameter in commands.commands["upgrade"].params] == ["url"]


def test_only_a_database_with_another_schema_is_upgraded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "mlflow.db"
    called = []

    def upgrade(arguments: list[str], standalone_mode: bool) -> None:
        called.append(arguments)
        other.write_bytes(file.read_bytes())

    monkeypatch.setattr(commands, "main", upgrade)
    client_of_database(f"sqlite:///{file}")
    assert called == []
    other = shifted(file, tmp_path / "other.db")
    assert client_of_database(f"sqlite:///{other}").search_experiments()
    assert called == [["upgrade", f"sqlite:///{other}"]]


def shifted(database: Path, other: Path) -> Path:
    """Copy `database` to `other`, mark the copy as of another schema, and return its path."""
    other.write_bytes(database.read_bytes())
    with contextlib.closing(sqlite3.connect(other)) as connection, connection:
        connection.execute("UPDATE alembic_version SET version_num = 'ffffffffffff'")
    return other


def test_cpu_disk_and_network_monitors_report_values() -> None:
    cpu, disk, network, _ = monitors()
    for kind in (cpu, disk, network):
        monitor = kind()
        monitor.collect_metrics()
        values = monitor.aggregate_metrics()
        assert values
        assert all(float(value) >= 0 for value in values.values())
        monitor.clear_metrics()
        assert monitor.aggregate_metrics() == {} or kind is network


def test_a_run_with_the_parent_tag_is_shown_below_its_parent() -> None:
    from mlflow.utils import mlflow_tags

    assert mlflow_tags.MLFLOW_PARENT_RUN_ID == PARENT_RUN


def test_mlflow_has_no_call_that_changes_a_stored_address() -> None:
    """If MLflow had a call to change an address, a moved project could correct its own."""
    calls = {name for name in dir(MlflowClient) if name.startswith(("update_", "set_", "rename_"))}
    assert {"update_run", "rename_experiment"} <= calls
    assert not [name for name in calls if any(word in name for word in ("location", "uri", "source", "artifact"))]


def test_a_serving_install_without_psutil_opens_a_database(tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['psutil'] = None\n"
        "from clozeline.tracking.mlflow import prepare\n"
        f"print(len(prepare('sqlite:///{tmp_path / 'mlflow.db'}').search_experiments()))"
    )
    opened = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=False)
    assert opened.stdout == "1\n", opened.stderr


def test_the_registered_version_is_read_from_the_file_that_mlflow_writes(tmp_path: Path) -> None:
    from mlflow.store.artifact import models_artifact_repo

    assert models_artifact_repo.REGISTERED_MODEL_META_FILE_NAME == _LOADED_AS
    assert loaded_as(tmp_path) is None
    (tmp_path / _LOADED_AS).write_text("model_name: clozeline-encoder\nmodel_version: '3'\n", encoding="utf-8")
    assert loaded_as(tmp_path) == ("clozeline-encoder", "3")


@pytest.mark.parametrize("store", ["database", "server"])
def test_a_missing_object_is_recognized_by_its_error_code(
    store: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    address: str = request.getfixturevalue("address") if store == "database" else request.getfixturevalue("server").url
    client = MlflowClient(address, registry_uri=address)
    client.create_registered_model("known")
    asked: dict[str, Callable[[], object]] = {
        "model": lambda: client.get_registered_model("other"),
        "version": lambda: client.get_model_version("known", "1"),
        "version that is no number": lambda: client.get_model_version("known", "one"),
        "alias": lambda: client.get_model_version_by_alias("known", "champion"),
        "alias of a model that is missing": lambda: client.get_model_version_by_alias("other", "champion"),
        "run": lambda: client.get_run("0" * 32),
    }
    for what, ask in asked.items():
        with pytest.raises(MlflowException) as caught:
            ask()
        assert is_absent(caught.value), what

    folder = None if store == "server" else (tmp_path / "artifacts").as_uri()
    run = client.create_run(client.create_experiment("runs", artifact_location=folder))
    with pytest.raises(MlflowException) as caught:
        download_artifacts(f"{run.info.artifact_uri}/evidence", dst_path=str(tmp_path), tracking_uri=address)
    assert files_are_gone(caught.value) is (store == "database"), "a server does not report missing files"


@pytest.mark.parametrize("store", ["database", "server"])
def test_files_of_a_run_are_listed_and_removed_while_the_run_stays(
    store: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    address: str = request.getfixturevalue("address") if store == "database" else request.getfixturevalue("server").url
    client = MlflowClient(address, registry_uri=address)
    folder = None if store == "server" else (tmp_path / "artifacts").as_uri()
    experiment = client.create_experiment("swept runs", artifact_location=folder)
    one, other = (client.create_run(experiment).info for _ in range(2))
    for run in (one, other):
        client.log_text(run.run_id, "12345", "a/b/c.txt")
        client.log_text(run.run_id, "123", "d.txt")
    assert set(stored_files(one.artifact_uri, address)) == {("a/b/c.txt", 5), ("d.txt", 3)}
    for _ in range(2):  # a second removal finds nothing and does not fail
        remove_stored_files(one.artifact_uri, address)
        assert list(stored_files(one.artifact_uri, address)) == []
    assert client.get_run(one.run_id).info.lifecycle_stage == "active"
    assert len(set(stored_files(other.artifact_uri, address))) == 2


def test_a_request_that_the_store_refuses_is_not_reported_as_missing(address: str) -> None:
    client = MlflowClient(address, registry_uri=address)
    client.create_registered_model("known")
    with pytest.raises(MlflowException) as caught:
        client.create_registered_model("known")
    assert not is_absent(caught.value)
    assert not files_are_gone(caught.value)


NAME = "clozeline-encoder"
URI = f"models:/{NAME}@champion"


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


def test_a_moved_project_finds_its_files(project: Path) -> None:
    there = project.rename(project.parent / "there")
    package = fetch(URI, Workspace(there))
    assert package.folder.is_relative_to(there)
    publisher = Publisher(address_in(there))
    with publisher.evidence(publisher.registry.version(NAME, "1")) as evidence:
        assert (evidence / "dvc.lock").exists()


def test_a_release_in_a_moved_project_makes_a_version_that_anyone_can_load(
    project: Path, encoder_package: Path
) -> None:
    registry = Publisher(address_in(project)).registry
    first = registry.version(NAME, "1")
    registry.tag(first, ROLLED_BACK, "true")
    there = project.rename(project.parent / "there")
    publisher = Publisher(address_in(there))
    again = publisher.publish(encoder_package, NAME, Evidence(files={}, tags={}))
    assert (again.version, again.package_sha256) == ("2", first.package_sha256)
    assert again.was_rolled_back, "an address set by a person stays"
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


def test_files_stored_elsewhere_by_a_person_stay_there(tmp_path: Path) -> None:
    client = prepare(address_in(tmp_path))
    client.create_experiment(EXPERIMENT, artifact_location="s3://bucket/files")
    (tmp_path / "work/mlflow/artifacts").mkdir()
    client = prepare(address_in(tmp_path))
    used = client.get_experiment(experiment_id(client, address_in(tmp_path)))
    assert (used.name, used.artifact_location) == (EXPERIMENT, "s3://bucket/files")


def test_a_project_moved_back_continues_its_first_experiment(project: Path) -> None:
    here = experiment_id(prepare(address_in(project)), address_in(project))
    there = project.rename(project.parent / "there")
    elsewhere = experiment_id(prepare(address_in(there)), address_in(there))
    assert elsewhere != here
    assert experiment_id(prepare(address_in(there)), address_in(there)) == elsewhere
    there.rename(project)
    assert experiment_id(prepare(address_in(project)), address_in(project)) == here


def test_missing_files_are_not_mistaken_for_a_missing_version(project: Path) -> None:
    publisher = Publisher(address_in(project))
    version = publisher.registry.version(NAME, "1")
    for folder in (project / "work/mlflow/artifacts").iterdir():
        shutil.rmtree(folder)
    with pytest.raises(ArtifactError, match=f"the files of {NAME} version 1 are gone") as caught:
        publisher.check(version, ["text"])
    assert "clozeline release" not in caught.value.do


def test_all_pages_of_a_search_are_read() -> None:
    pages = {None: PagedList([1, 2], "next"), "next": PagedList([3], None)}
    assert list(every(lambda page_token: pages[page_token])) == [1, 2, 3]


def test_preparing_again_changes_nothing(project: Path) -> None:
    database = project / "work/mlflow/mlflow.db"
    prepare(address_in(project))
    before = database.read_bytes()
    prepare(address_in(project))
    assert database.read_bytes() == before
    assert isinstance(prepare(address_in(project)), MlflowClient)


@pytest.mark.parametrize("kept", [0.7, 0.3, 0.0003])
def test_a_truncated_database_is_reported_as_damaged_with_what_to_do(project: Path, kept: float) -> None:
    database = project / "work/mlflow/mlflow.db"
    content = database.read_bytes()
    database.write_bytes(content[: int(kept * len(content))])
    with pytest.raises(ArtifactError, match=r"database .*mlflow\.db .* is damaged") as caught:
        prepare(address_in(project))
    assert "mv mlflow.db mlflow.db.damaged" in caught.value.do
    database.rename(database.with_suffix(".db.damaged"))
    assert isinstance(prepare(address_in(project)), MlflowClient)
