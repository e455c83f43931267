"""`clozeline release`, `rollback`, `lineage` and `sign`, and `serve --require-signature` of what was signed."""

import os
import shutil
from http.server import ThreadingHTTPServer
from pathlib import Path

import pytest
from typer.testing import CliRunner

from clozeline.cli import app
from clozeline.cli.release import as_tree, wide_enough
from clozeline.registry import models
from clozeline.registry.lineage import Ancestor, Trace
from clozeline.registry.models import FetchedPackage, Registered
from clozeline.registry.publishing import Evidence, Publisher
from clozeline.registry.sources import ModelSource, fetched
from clozeline.registry.versions import Registry, fetch_package
from clozeline.system.errors import ArtifactError, ParamsError, TransientError
from clozeline.system.workspace import Workspace
from clozeline.tracking.outbox import Outbox, TrackedRun
from tests.make import servers
from tests.make.packages import write_encoder
from tests.registry.test_signature import allow, make_key

URI = "models:/clozeline-encoder@champion"


def test_what_is_not_registered_is_named_beside_what_is(project: Path) -> None:
    registry = Registry.open(Workspace(project).defaults()["MLFLOW_TRACKING_URI"])
    registry.promote(
        registry.register("clozeline-encoder", source=str(project), run_id="", package_sha256="aa", description="")
    )
    for typed, kind, problem, do in (
        ("rollback clozeline-encoder", ArtifactError, "clozeline-encoder has no version to go back to", ""),
        ("rollback nosuch", ArtifactError, "nosuch, but clozeline-encoder", ""),
        ("rollback --to 3 --undo", ParamsError, "not both", "`clozeline rollback encoder --to 3`"),
        ("lineage models:/clozeline-none@champion", ArtifactError, "", "clozeline release"),
    ):
        error = CliRunner().invoke(app, typed).exception
        assert isinstance(error, kind)
        assert problem in error.problem
        assert do in error.do


def test_a_lineage_is_drawn_from_the_model_to_the_source_without_truncated_hashes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A line for each, for grep, also in a narrow terminal."""
    version = Registered("clozeline-encoder", "3", "f" * 32, "0123456789abcdef", was_rolled_back=False)
    source = Ancestor("raw.txt", "a" * 32, None, ())
    encoder = Ancestor("models/encoder", f"{'c' * 32}.dir", "a-stage-with-a-long-name", (source, source))
    monkeypatch.setenv("COLUMNS", "60")
    tree = as_tree(Trace(URI, version, FetchedPackage(Path(), version), "e" * 40, encoder))
    wide_enough(tree).print(tree)
    assert [line.strip("│├└─ ") for line in capsys.readouterr().out.splitlines()] == [
        *(URI, "clozeline-encoder version 3, package sha256 0123456789ab"),
        f"MLflow run {'f' * 32}, git commit {'e' * 40}",
        f"models/encoder  md5 {'c' * 32}.dir, made by a-stage-with-a-long-name",
        *(f"raw.txt  md5 {'a' * 32}, a source", "raw.txt (see above)"),
    ]


def test_a_release_without_mlflow_says_at_once_what_waits_and_how_to_finish_it(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Outbox(project / "work/outbox").open("run", TrackedRun(name="run", tags={}, started_ms=1))
    asked = []

    class HangingUp(servers.Handler):
        def do_GET(self) -> None:
            asked.append(self.path)

        do_POST = do_GET

    with servers.answering(ThreadingHTTPServer(("127.0.0.1", 0), HangingUp)) as server:
        address = f"http://127.0.0.1:{server.server_port}"
        monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
        error = CliRunner().invoke(app, ["release"]).exception
    assert isinstance(error, TransientError)
    assert len(asked) == 1, "MLflow's client alone would ask again for 12 s"
    assert os.environ["MLFLOW_HTTP_REQUEST_MAX_RETRIES"] == "3", "later requests are retried"
    told = str(error)
    for words in (address, "dist/encoder", str(project / "work/outbox"), "`clozeline release`"):
        assert words in told
    assert not (project / "work/logs").exists(), "no server was started"


@pytest.fixture
def packaged(project: Path) -> Path:
    write_encoder(project / "dist/encoder")
    return project


def sign(model: str, key: Path) -> str:
    return CliRunner().invoke(app, ["sign", model, "--key", str(key)], catch_exceptions=False).output


def test_a_signed_folder_is_served_and_an_unsigned_or_changed_one_is_not(packaged: Path) -> None:
    key = make_key(packaged / "ada")
    source = ModelSource("encoder", "dist/encoder", allow(packaged / "signers", ada=key))
    with pytest.raises(ArtifactError, match="not one by one of those in"):
        fetched(source)
    assert "encoder.sig. Next: clozeline serve dist/encoder --require-signature FILE" in sign("dist/encoder", key)
    assert fetched(source).folder == Path("dist/encoder")
    assert not list((packaged / "dist/encoder").glob("*.sig")), "DVC tracks this folder"
    (packaged / "dist/encoder/tokenizer.json").write_text("{}")
    with pytest.raises(ArtifactError, match="is not the file that was exported"):
        sign("dist/encoder", key)


def test_a_signed_version_is_served_in_place_and_as_a_copy(packaged: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    workspace = Workspace(packaged)
    publisher = Publisher(workspace.defaults()["MLFLOW_TRACKING_URI"])
    publisher.registry.promote(publisher.publish(packaged / "dist/encoder", "clozeline-encoder", Evidence({}, {})))
    key = make_key(packaged / "ada")
    source = ModelSource("encoder", URI, allow(packaged / "signers", ada=key))
    with pytest.raises(ArtifactError, match="not one by one of those in"):
        fetched(source)
    assert "as a tag of clozeline-encoder version 1" in sign(URI, key)
    assert fetched(source).version.version == "1"
    monkeypatch.setattr(
        models, "fetch", lambda uri: models.FetchedPackage(*fetch_package(uri, workspace))
    )  # by MLflow, as from a server
    assert fetched(source).version.version == "1"
    shutil.rmtree(packaged / "ada")
    with pytest.raises(ArtifactError, match="not one by one of those in"):
        fetched(ModelSource("encoder", URI, allow(packaged / "others", eve=make_key(packaged / "eve"))))
