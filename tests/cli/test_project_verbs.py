"""Verbs that work on a project: where they may be called, and what they print."""

import contextlib
import io
import os
import shutil
import socket
import threading
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from clozeline.cli import app
from clozeline.cli.release import as_tree, wide_enough
from clozeline.cli.verbs import project_here
from clozeline.registry.lineage import Ancestor, Trace
from clozeline.registry.models import FetchedPackage, Registered
from clozeline.registry.versions import Registry
from clozeline.system.errors import ArtifactError, ParamsError, TransientError
from clozeline.system.workspace import Workspace
from clozeline.tracking.outbox import Outbox, TrackedRun

CHECKOUT = Path(__file__).parents[2]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folder that the verbs accept as a project."""
    for name in ("dvc.yaml", "params.yaml"):
        shutil.copy(CHECKOUT / name, tmp_path / name)
    monkeypatch.chdir(tmp_path)
    for name, value in Workspace(tmp_path).defaults().items():
        monkeypatch.setenv(name, value)
    return tmp_path


@pytest.mark.parametrize("verb", ["run", "release", "rollback", "report", "ui", "lineage models:/x@champion"])
def test_outside_a_project_a_verb_says_where_to_go(verb: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, verb.split())
    assert isinstance(result.exception, ParamsError)
    assert "no dvc.yaml" in str(result.exception)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("verb", ["run", "release"])
def test_invalid_params_are_reported_once_before_anything_starts(verb: str, project: Path) -> None:
    params = (project / "params.yaml").read_text(encoding="utf-8")
    (project / "params.yaml").write_text(params.replace("seed: ", "seed: many #"), encoding="utf-8")
    result = CliRunner().invoke(app, [verb])
    assert isinstance(result.exception, ParamsError)
    assert "`seed` cannot be used" in str(result.exception)
    assert result.output == ""
    assert not (project / "work/logs").exists()


@pytest.mark.parametrize("verb", ["run", "import nosuch/model"])
def test_a_cluster_that_does_not_answer_is_reported_before_anything_starts(
    verb: str, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLOZELINE_CLUSTER", "ray://127.0.0.1:1")
    result = CliRunner().invoke(app, verb.split())
    assert isinstance(result.exception, TransientError)
    assert "no cluster answers at 127.0.0.1:1" in str(result.exception)
    assert not (project / "work/logs").exists()


def test_in_a_project_tools_keep_their_state_there(project: Path) -> None:
    assert project_here() == Workspace(project)
    assert (project / "work/prefect").is_dir()


@pytest.mark.parametrize("model", ["library", "clozeline-library"])
def test_a_rollback_without_a_previous_version_is_refused(project: Path, model: str) -> None:
    result = CliRunner().invoke(app, ["rollback", model])
    assert isinstance(result.exception, ArtifactError)
    assert "clozeline-library has no version to go back to" in str(result.exception)


def test_a_rollback_of_an_unknown_model_lists_the_known_ones(project: Path) -> None:
    registry = Registry.open(Workspace(project).defaults()["MLFLOW_TRACKING_URI"])
    registry.promote(
        registry.register("clozeline-encoder", source=str(project), run_id="", package_sha256="aa", description="")
    )
    result = CliRunner().invoke(app, ["rollback", "nosuch"])
    assert isinstance(result.exception, ArtifactError)
    assert "nosuch, but clozeline-encoder" in result.exception.problem


def test_the_help_shows_no_options_of_the_shell() -> None:
    assert "completion" not in CliRunner().invoke(app, ["--help"]).output


def test_the_lineage_of_a_missing_model_points_to_release(project: Path) -> None:
    result = CliRunner().invoke(app, ["lineage", "models:/clozeline-encoder@champion"])
    assert isinstance(result.exception, ArtifactError)
    assert "clozeline release" in result.exception.do


def test_a_lineage_is_drawn_from_the_model_to_the_source() -> None:
    source = Ancestor("raw.txt", "aa", None, ())
    clean = Ancestor("data/clean", "bb.dir", "preprocess", (source,))
    encoder = Ancestor("models/encoder", "cc.dir", "pretrain", (clean, source))
    version = Registered("clozeline-encoder", "3", "run", "0123456789abcdef", was_rolled_back=False)
    package = FetchedPackage(Path(), version)
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(as_tree(Trace("models:/clozeline-encoder@champion", version, package, "commit", encoder)))
    lines = [line.strip("│├└─ ") for line in console.export_text().splitlines()]
    assert lines == [
        "models:/clozeline-encoder@champion",
        "clozeline-encoder version 3, package sha256 0123456789ab",
        "MLflow run run, git commit commit",
        "models/encoder  md5 cc.dir, made by pretrain",
        "data/clean  md5 bb.dir, made by preprocess",
        "raw.txt  md5 aa, a source",
        "raw.txt (see above)",
    ]


def test_a_narrow_terminal_does_not_truncate_the_hashes_of_a_lineage(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    paths = [f"models/finetuned/a-task-with-a-long-name-{number}" for number in range(9)]
    origin = None
    for number, path in enumerate(paths):
        origin = Ancestor(path, f"{number:032x}.dir", "a-stage-with-a-long-name", (origin,) if origin else ())
    assert origin
    version = Registered("clozeline-encoder", "3", "f" * 32, "0123456789abcdef", was_rolled_back=False)
    tree = as_tree(Trace("models:/x@champion", version, FetchedPackage(Path(), version), "e" * 40, origin))
    wide_enough(tree).print(tree)
    shown = capsys.readouterr().out
    assert [f"{number:032x}.dir" in shown for number in range(9)] == [True] * 9
    assert "f" * 32 in shown
    assert "e" * 40 in shown
    assert len(shown.splitlines()) == 3 + 9, "one line for each, for grep"


def test_a_port_in_use_is_named_before_anything_starts(project: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = CliRunner().invoke(app, ["ui", "--prefect-port", str(port)])
    assert isinstance(result.exception, ParamsError)
    assert f"--prefect-port {port + 1}" in result.exception.do
    assert not (project / "work/logs").exists()


def test_a_release_without_mlflow_says_at_once_what_waits_and_how_to_finish_it(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Outbox(project / "work/outbox").open("run", TrackedRun(name="run", tags={}, started_ms=1))
    asked = []

    def hang_up(server: socket.socket) -> None:
        with contextlib.suppress(OSError):  # the test has ended
            while True:
                caller, address = server.accept()
                asked.append(address)
                caller.close()

    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"http://127.0.0.1:{server.getsockname()[1]}"
        monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
        threading.Thread(target=hang_up, args=[server], daemon=True).start()
        result = CliRunner().invoke(app, ["release"])
        server.shutdown(socket.SHUT_RDWR)
    assert isinstance(result.exception, TransientError)
    assert len(asked) == 1, "MLflow's client alone would ask again for 12 s"
    assert os.environ["MLFLOW_HTTP_REQUEST_MAX_RETRIES"] == "3", "later requests are retried"
    assert result.exception.problem == f"MLflow at {address} does not answer, so nothing was released"
    assert "dist/encoder" in str(result.exception.given)
    assert str(project / "work/outbox") in str(result.exception.given)
    assert result.exception.do.endswith("`clozeline release`")
    assert not (project / "work/logs").exists(), "no server was started"
