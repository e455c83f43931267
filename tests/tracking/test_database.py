"""A moved or copied project folder finds its own files, and writes nothing to the old location."""

import shutil
from pathlib import Path

import pytest
from mlflow.store.entities import PagedList
from mlflow.tracking import MlflowClient

from clozeline.records.package import read_manifest
from clozeline.registry.models import ROLLED_BACK, fetch
from clozeline.registry.publishing import Evidence, Publisher, example_texts
from clozeline.system.errors import ArtifactError
from clozeline.system.workspace import Workspace
from clozeline.tracking.mlflow import EXPERIMENT, every, experiment_id, prepare

NAME = "clozeline-encoder"
URI = f"models:/{NAME}@champion"


def address(root: Path) -> str:
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
    publisher = Publisher(address(root))
    version = publisher.publish(encoder_package, NAME, Evidence(files={"dvc.lock": Path(__file__)}, tags={}))
    publisher.registry.promote(version)
    return root


def test_a_moved_project_finds_its_files(project: Path) -> None:
    there = project.rename(project.parent / "there")
    package = fetch(URI, Workspace(there))
    assert package.folder.is_relative_to(there)
    publisher = Publisher(address(there))
    with publisher.evidence(publisher.registry.version(NAME, "1")) as evidence:
        assert (evidence / "dvc.lock").exists()


def test_a_release_in_a_moved_project_makes_a_version_that_anyone_can_load(
    project: Path, encoder_package: Path
) -> None:
    registry = Publisher(address(project)).registry
    first = registry.version(NAME, "1")
    registry.tag(first, ROLLED_BACK, "true")
    there = project.rename(project.parent / "there")
    publisher = Publisher(address(there))
    again = publisher.publish(encoder_package, NAME, Evidence(files={}, tags={}))
    assert (again.version, again.package_sha256) == ("2", first.package_sha256)
    assert again.was_rolled_back, "an address set by a person stays"
    publisher.check(again, example_texts(read_manifest(encoder_package)))
    assert publisher.publish(encoder_package, NAME, Evidence(files={}, tags={})) == again


def test_a_copied_project_does_not_write_into_the_original(project: Path) -> None:
    copy = shutil.copytree(project, project.parent / "copy")
    before = sorted(project.rglob("*"))
    client = prepare(address(copy))
    new = client.create_run(experiment_id(client, address(copy)))
    client.log_text(new.info.run_id, "text", "file.txt")
    assert len(list(copy.rglob("file.txt"))) == 1
    assert sorted(project.rglob("*")) == before
    assert fetch(URI, Workspace(project)).folder.is_relative_to(project)


def test_files_stored_elsewhere_by_a_person_stay_there(tmp_path: Path) -> None:
    client = prepare(address(tmp_path))
    client.create_experiment(EXPERIMENT, artifact_location="s3://bucket/files")
    (tmp_path / "work/mlflow/artifacts").mkdir()
    client = prepare(address(tmp_path))
    used = client.get_experiment(experiment_id(client, address(tmp_path)))
    assert (used.name, used.artifact_location) == (EXPERIMENT, "s3://bucket/files")


def test_a_project_moved_back_continues_its_first_experiment(project: Path) -> None:
    here = experiment_id(prepare(address(project)), address(project))
    there = project.rename(project.parent / "there")
    elsewhere = experiment_id(prepare(address(there)), address(there))
    assert elsewhere != here
    assert experiment_id(prepare(address(there)), address(there)) == elsewhere
    there.rename(project)
    assert experiment_id(prepare(address(project)), address(project)) == here


def test_missing_files_are_not_mistaken_for_a_missing_version(project: Path) -> None:
    publisher = Publisher(address(project))
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
    prepare(address(project))
    before = database.read_bytes()
    prepare(address(project))
    assert database.read_bytes() == before
    assert isinstance(prepare(address(project)), MlflowClient)


@pytest.mark.parametrize("kept", [0.7, 0.3, 0.0003])
def test_a_truncated_database_is_reported_as_damaged_with_what_to_do(project: Path, kept: float) -> None:
    database = project / "work/mlflow/mlflow.db"
    content = database.read_bytes()
    database.write_bytes(content[: int(kept * len(content))])
    with pytest.raises(ArtifactError, match=r"database .*mlflow\.db .* is damaged") as caught:
        prepare(address(project))
    assert "mv mlflow.db mlflow.db.damaged" in caught.value.do
    database.rename(database.with_suffix(".db.damaged"))
    assert isinstance(prepare(address(project)), MlflowClient)
