"""Aliases name the live version. A team's registry is a server with the files, from which other machines fetch."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import mlflow
import pytest
from mlflow import MlflowClient

from clozeline.records.package import read_manifest, verify
from clozeline.registry import models
from clozeline.registry.models import CANDIDATE, CHAMPION, PREVIOUS
from clozeline.registry.publishing import Evidence, Publisher, example_texts
from clozeline.registry.versions import Registry
from clozeline.system.errors import ArtifactError
from clozeline.system.workspace import Workspace
from tests.make.servers import MlflowServer
from tests.make.stores import aliases, write_versions

URI = "models:/clozeline-encoder@champion"


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free_port: Callable[[], int]) -> Iterator[MlflowServer]:
    server = MlflowServer(tmp_path, free_port())
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server.url)
    monkeypatch.setenv("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
    try:
        server.start()
        yield server
    finally:
        server.stop()


def test_a_package_survives_a_round_trip_through_the_server_byte_for_byte(
    server: MlflowServer, encoder_package: Path, tmp_path: Path
) -> None:
    publisher = Publisher(server.url)
    evidence = Evidence(files={"metrics/export.json": encoder_package / "manifest.json"}, tags={})
    version = publisher.publish(encoder_package, "clozeline-encoder", evidence)
    publisher.check(version, example_texts(read_manifest(encoder_package)))
    publisher.registry.promote(version)
    with publisher.evidence(version) as folder:
        assert (folder / "metrics/export.json").read_bytes() == (encoder_package / "manifest.json").read_bytes()

    elsewhere = Workspace(tmp_path / "elsewhere")
    found = models.fetch(URI, elsewhere)
    assert found.folder.is_relative_to(elsewhere.work)
    verify(found.folder, read_manifest(found.folder))
    server.stop()
    server.start()
    (found.folder / "kept").touch()
    assert (models.fetch(URI, elsewhere).folder / "kept").exists(), "fetched once, it is not fetched again"
    (answer,) = mlflow.pyfunc.load_model(URI).predict(["a [MASK]"])
    assert len(answer["masks"]) == 1

    copies = elsewhere.work / "registry"
    (copies / "clozeline-encoder-tiny-1-0123456789ab").mkdir()  # folder of another model
    package = shutil.copytree(encoder_package, tmp_path / "package")
    for kept in ({"1", "2"}, {"2", "3"}):  # the champion, and the previous one
        with (package / "manifest.json").open("a") as manifest:
            manifest.write("\n")
        publisher.registry.promote(publisher.publish(package, "clozeline-encoder", evidence))
        models.fetch(URI, elsewhere)
        assert {folder.name.split("-")[2] for folder in copies.iterdir()} == {*kept, "tiny"}
    models.fetch("models:/clozeline-encoder/1", elsewhere)
    assert len(list(copies.iterdir())) == 4, "a version that was asked for by its number takes no other's place"


NAME = "clozeline-encoder"


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Database in which version 2 is the champion, version 1 the previous one and version 3 the candidate."""
    return write_versions(tmp_path_factory.mktemp("registry") / "mlflow.db")


@pytest.fixture
def registry(database: Path, tmp_path: Path) -> Registry:
    return Registry.open(f"sqlite:///{shutil.copy(database, tmp_path)}")


def test_a_promotion_makes_the_old_champion_the_previous_one(registry: Registry) -> None:
    registry.promote(registry.version(NAME, "3"))
    assert aliases(registry) == {CHAMPION: "3", PREVIOUS: "2"}


def test_a_rollback_can_itself_be_taken_back_but_not_repeated(registry: Registry) -> None:
    with pytest.raises(ArtifactError, match="no rollback to undo"):
        registry.roll_back(NAME, undo=True)
    assert registry.roll_back(NAME).after == "1"
    assert registry.version(NAME, "2").was_rolled_back
    with pytest.raises(ArtifactError, match="rolled back already") as caught:
        registry.roll_back(NAME)
    assert f"`clozeline rollback {NAME} --undo`" in caught.value.do
    assert aliases(registry) == {CHAMPION: "1", PREVIOUS: "2", CANDIDATE: "3"}
    assert registry.roll_back(NAME, undo=True).after == "2"
    assert aliases(registry) == {CHAMPION: "2", PREVIOUS: "1", CANDIDATE: "3"}
    assert not registry.version(NAME, "2").was_rolled_back
    assert registry.roll_back(NAME).after == "1"


def test_a_model_without_a_previous_version_cannot_be_rolled_back(registry: Registry) -> None:
    registry.register("clozeline-new", source="file:///x", run_id="", package_sha256="1", description="")
    registry.promote(registry.version("clozeline-new", "1"))
    with pytest.raises(ArtifactError, match="no version to go back to"):
        registry.roll_back("clozeline-new")


def test_a_rollback_can_go_to_any_version(registry: Registry) -> None:
    registry.promote(registry.version(NAME, "3"))
    done = registry.roll_back(NAME, to="1")
    assert (done.after, done.before) == ("1", "3")
    assert aliases(registry) == {CHAMPION: "1", PREVIOUS: "3"}
    assert registry.version(NAME, "3").was_rolled_back
    assert registry.roll_back(NAME, to="3").after == "3"
    assert not registry.version(NAME, "3").was_rolled_back


@pytest.mark.parametrize(("version", "problem"), [("2", "no version to go back to"), ("9", "has no version 9")])
def test_a_rollback_to_the_champion_or_an_unknown_version_is_refused(
    registry: Registry, version: str, problem: str
) -> None:
    with pytest.raises(ArtifactError, match=problem):
        registry.roll_back(NAME, to=version)
    assert aliases(registry) == {CHAMPION: "2", PREVIOUS: "1", CANDIDATE: "3"}


def test_a_champion_that_is_also_the_previous_version_is_not_rolled_back_to_itself(
    database: Path, tmp_path: Path
) -> None:
    address = f"sqlite:///{shutil.copy(database, tmp_path)}"
    registry, client = Registry.open(address), MlflowClient(address)
    client.set_registered_model_alias(NAME, PREVIOUS, "2")
    with pytest.raises(ArtifactError, match="no version to go back to") as caught:
        registry.roll_back(NAME)
    assert f"`clozeline rollback {NAME} --to VERSION`" in caught.value.do
    assert aliases(registry)[CHAMPION] == "2"
    assert registry.roll_back(NAME, to="1").after == "1"
