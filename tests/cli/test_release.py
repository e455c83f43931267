"""`clozeline sign`, and `serve --require-signature` of a folder and of a registered version."""

import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from clozeline.cli import app
from clozeline.registry import models
from clozeline.registry.publishing import Evidence, Publisher
from clozeline.registry.sources import ModelSource, fetched
from clozeline.registry.versions import fetch_package
from clozeline.system.errors import ArtifactError
from clozeline.system.workspace import Workspace
from tests.make.packages import write_encoder
from tests.registry.test_signature import allow, make_key


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_encoder(tmp_path / "dist" / "encoder")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def sign(model: str, key: Path) -> str:
    done = CliRunner().invoke(app, ["sign", model, "--key", str(key)], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def test_a_signed_folder_is_served_and_an_unsigned_one_is_not(project: Path) -> None:
    key = make_key(project / "ada")
    source = ModelSource("encoder", "dist/encoder", allow(project / "signers", ada=key))
    with pytest.raises(ArtifactError, match="no signature that counts"):
        fetched(source)
    assert "encoder.sig. Next: clozeline serve dist/encoder --require-signature FILE" in sign("dist/encoder", key)
    assert fetched(source).folder == Path("dist/encoder")
    assert not list((project / "dist/encoder").glob("*.sig")), "DVC tracks this folder"


def test_a_changed_folder_is_not_signed(project: Path) -> None:
    (project / "dist/encoder/tokenizer.json").write_text("{}")
    with pytest.raises(ArtifactError, match="is not the file that was exported"):
        CliRunner().invoke(
            app, ["sign", "dist/encoder", "--key", str(make_key(project / "ada"))], catch_exceptions=False
        )


def test_a_signed_version_is_served_in_place_and_as_a_copy(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    workspace = Workspace(project)
    for name, value in workspace.defaults().items():
        monkeypatch.setenv(name, value)
    publisher = Publisher(workspace.defaults()["MLFLOW_TRACKING_URI"])
    publisher.registry.promote(publisher.publish(project / "dist/encoder", "clozeline-encoder", Evidence({}, {})))
    uri, key = "models:/clozeline-encoder@champion", make_key(project / "ada")
    source = ModelSource("encoder", uri, allow(project / "signers", ada=key))
    with pytest.raises(ArtifactError, match="no signature that counts"):
        fetched(source)
    assert "as a tag of clozeline-encoder version 1" in sign(uri, key)
    assert fetched(source).version.version == "1"
    monkeypatch.setattr(models, "fetch", lambda uri: fetch_package(uri, workspace))  # by MLflow, as from a server
    assert fetched(source).version.version == "1"
    shutil.rmtree(project / "ada")
    with pytest.raises(ArtifactError, match="no signature that counts"):
        fetched(ModelSource("encoder", uri, allow(project / "others", eve=make_key(project / "eve"))))
