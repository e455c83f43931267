"""The adapter's assumptions about the installed MLflow; a failing test shows what an upgrade changed."""

import contextlib
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from mlflow.artifacts import download_artifacts
from mlflow.db import commands
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient

from clozeline.tracking.mlflow import (
    _LOADED_AS,
    _OUTDATED,
    PARENT_RUN,
    client_of_database,
    files_are_gone,
    is_absent,
    loaded_as,
    monitors,
    remove_stored_files,
    stored_files,
)
from tests.make.servers import MlflowServer


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


@pytest.fixture
def database(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'mlflow.db'}"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, free_port: Callable[[], int]) -> Iterator[str]:
    server = MlflowServer(tmp_path_factory.mktemp("server"), free_port())
    try:
        server.start()
        yield server.url
    finally:
        server.stop()


@pytest.mark.parametrize("store", ["database", "server"])
def test_a_missing_object_is_recognized_by_its_error_code(
    store: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    address: str = request.getfixturevalue(store)
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
    address: str = request.getfixturevalue(store)
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


def test_a_request_that_the_store_refuses_is_not_reported_as_missing(database: str) -> None:
    client = MlflowClient(database, registry_uri=database)
    client.create_registered_model("known")
    with pytest.raises(MlflowException) as caught:
        client.create_registered_model("known")
    assert not is_absent(caught.value)
    assert not files_are_gone(caught.value)
