"""What all verbs share: usage errors, the project they are called in, and what is checked before anything starts."""

import os
import sys
from importlib import metadata
from pathlib import Path
from unittest.mock import Mock

import pytest
from typer.testing import CliRunner

from clozeline.cli import app
from clozeline.cli.release import run
from clozeline.cli.serve import _in_fleet, _set_up_log
from clozeline.cli.verbs import project_here
from clozeline.params.reading import read_params
from clozeline.registry.sources import ModelSource
from clozeline.system.errors import ParamsError, TransientError
from clozeline.system.workspace import Workspace


def test_a_usage_error_states_what_was_typed_what_was_expected_and_what_to_type() -> None:
    for typed, expected, do in (
        ("serv", "serve", "type `serve`"),
        ("run --no-relase", "--no-release", "type `--no-release`"),
        ("run extra", "clozeline run [OPTIONS]", "run `clozeline run --help`"),
        ("lineage", "MODEL", "run `clozeline lineage --help`"),
        ("demo --mode 'my mode'", "mlm|clm", "run `clozeline demo --help`"),
        ("demo --steps 5", "x>=10", "run `clozeline demo --help`"),
        ("serve --port", "a value after the option", "run `clozeline serve --help`"),
        ("--nope", "--help", "run `clozeline --help`"),
    ):
        error = CliRunner().invoke(app, typed, prog_name="clozeline").exception
        assert isinstance(error, ParamsError)
        assert (error.exit_code, error.given) == (2, f"clozeline {typed}")
        assert expected in error.expected
        assert error.do.startswith(do)
        assert "Input" not in error.problem


def test_the_version_is_that_of_the_installed_package_and_without_a_verb_the_help_is_shown() -> None:
    told = CliRunner().invoke(app, "--version").output
    assert told.startswith(f"clozeline {metadata.version('clozeline')}, Python 3")
    shown = CliRunner().invoke(app, [], prog_name="clozeline").output
    assert "Usage: clozeline" in shown
    assert "completion" not in shown, "no options of the shell"


def test_outside_a_project_a_verb_says_where_to_go_and_inside_tools_keep_their_state_there(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert project_here() == Workspace(project)
    assert (project / "work/prefect").is_dir()
    (project / "outside").mkdir()
    monkeypatch.chdir("outside")
    for verb in ("run", "release", "rollback", "report", "ui", "lineage models:/x@champion"):
        error = CliRunner().invoke(app, verb.split()).exception
        assert isinstance(error, ParamsError)
        assert "no dvc.yaml" in str(error)
    assert list(Path.cwd().iterdir()) == []


@pytest.mark.parametrize(
    ("verb", "seed", "cluster", "told"),
    [
        ("run", "many", "", "`seed` cannot be used"),
        ("run", "1", "ray://127.0.0.1:1", "no cluster answers at 127.0.0.1:1"),
        ("import nosuch/model", "1", "ray://127.0.0.1:1", "no cluster answers at 127.0.0.1:1"),
    ],
)
def test_params_and_the_cluster_are_checked_before_anything_starts(
    verb: str, seed: str, cluster: str, told: str, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    params = (project / "params.yaml").read_text(encoding="utf-8")
    (project / "params.yaml").write_text(params.replace("seed: ", f"seed: {seed} #"), encoding="utf-8")
    monkeypatch.setenv("CLOZELINE_CLUSTER", cluster)
    result = CliRunner().invoke(app, verb.split())
    assert isinstance(result.exception, TransientError if cluster else ParamsError)
    assert told in str(result.exception)
    assert result.output == ""
    assert not (project / "work/logs").exists()


@pytest.mark.parametrize("has_git", [True, False])
def test_run_changes_params_before_anything_runs_and_names_git_only_where_there_is_one(
    has_git: bool, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if has_git:
        (project / ".git").mkdir()
    (project / "params.yaml").write_text("pretrain:\n  max_length: 48\nfinetune: {}\nexport: {models: {}}\n")
    (project / "other.yaml").write_text("pretrain: {max_length: 40, steps: 900}\n")
    monkeypatch.setattr(sys.modules[run.__module__], "ending_orderly", Mock(side_effect=InterruptedError))
    result = CliRunner().invoke(app, "run --config other.yaml --set pretrain.steps=500")
    assert isinstance(result.exception, InterruptedError), "the run begins"
    params = read_params(project / "params.yaml")
    assert (params.pretrain.max_length, params.pretrain.steps) == (40, 500)
    assert ("git diff" in result.output) is has_git


CHAMPION, CANDIDATE, FIXED = (f"models:/clozeline-encoder{version}" for version in ("@champion", "@candidate", "/7"))


def test_champions_change_together_and_models_that_cannot_are_refused_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    sources = [ModelSource.parse(place) for place in (CHAMPION, FIXED)]
    assert [source.is_in_fleet for source in _in_fleet(sources, 10.0)] == [True, False]
    for places, watch, named in (
        ([CHAMPION, CANDIDATE], 10.0, "candidate"),
        ([CHAMPION], 0.0, "cannot change together"),
        # Until --fleet lost its address, `--fleet 10.0.0.5` was how a replica was started.
        (["10.0.0.5", CHAMPION], 10.0, "10.0.0.5"),
    ):
        with pytest.raises(ParamsError) as caught:
            _in_fleet([ModelSource.parse(place) for place in places], watch)
        assert named in str(caught.value)


def test_a_server_sends_no_telemetry_and_asks_the_registry_briefly(monkeypatch: pytest.MonkeyPatch) -> None:
    for is_in_fleet, retries in ((True, "1"), (False, "3")):
        monkeypatch.setattr(os, "environ", {"ORT_DISABLE_TELEMETRY": "0"})
        _set_up_log(is_in_fleet=is_in_fleet)
        assert os.environ["MLFLOW_DISABLE_TELEMETRY"] == "true"
        assert os.environ["MLFLOW_HTTP_REQUEST_MAX_RETRIES"] == retries
        assert os.environ["ORT_DISABLE_TELEMETRY"] == "0", "what a person has set stays"
