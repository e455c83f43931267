"""A team's registry is a server that keeps the files; another machine fetches packages from it."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import mlflow
import pytest

from clozeline.records.package import read_manifest, verify
from clozeline.registry import models
from clozeline.registry.publishing import Evidence, Publisher, example_texts
from clozeline.system.workspace import Workspace
from tests.make.servers import MlflowServer

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
