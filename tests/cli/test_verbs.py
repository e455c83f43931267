"""A command that cannot be understood ends with the four parts of an error, whatever the verb."""

import sys
from importlib import metadata
from pathlib import Path
from unittest.mock import Mock

import pytest
from typer.testing import CliRunner

from clozeline.cli import app
from clozeline.cli.run import run
from clozeline.params.reading import read_params
from clozeline.system.errors import ParamsError
from clozeline.system.workspace import Workspace


@pytest.mark.parametrize(
    ("typed", "expected", "do"),
    [
        ("serv", "serve", "type `serve`"),
        ("run --no-relase", "--no-release", "type `--no-release`"),
        ("run --zzz", "--no-release", "run `clozeline run --help`"),
        ("run extra", "clozeline run [OPTIONS]", "run `clozeline run --help`"),
        ("lineage", "MODEL", "run `clozeline lineage --help`"),
        ("evaluate", "--model", "run `clozeline evaluate --help`"),
        ("demo --steps five", "x>=10", "run `clozeline demo --help`"),
        ("demo --steps 5", "x>=10", "run `clozeline demo --help`"),
        ("demo --mode 'my mode'", "mlm|clm", "run `clozeline demo --help`"),
        ("serve --port", "a value after the option", "run `clozeline serve --help`"),
        ("rollback --to 3 --undo", "not both", "`clozeline rollback encoder --to 3`"),
        ("--nope", "--help", "run `clozeline --help`"),
    ],
)
def test_a_usage_error_states_what_was_typed_what_was_expected_and_what_to_type(
    typed: str, expected: str, do: str
) -> None:
    result = CliRunner().invoke(app, typed, prog_name="clozeline")
    error = result.exception
    assert isinstance(error, ParamsError)
    assert error.exit_code == 2
    assert str(error.given) in {f"clozeline {typed}", "--to 3 and --undo"}
    assert expected in error.expected
    assert error.do.startswith(do)
    assert "Input" not in error.problem


def test_without_a_verb_the_help_is_shown() -> None:
    assert "Usage: clozeline" in CliRunner().invoke(app, [], prog_name="clozeline").output


def test_the_version_is_that_of_the_installed_package() -> None:
    told = CliRunner().invoke(app, "--version").output
    assert told.startswith(f"clozeline {metadata.version('clozeline')}, Python 3")


@pytest.mark.parametrize("has_git", [True, False])
def test_run_changes_params_before_anything_runs_and_names_git_only_where_there_is_one(
    has_git: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, value in Workspace(tmp_path).defaults().items():
        monkeypatch.setenv(name, value)
    if has_git:
        (tmp_path / ".git").mkdir()
    (tmp_path / "dvc.yaml").touch()
    (tmp_path / "params.yaml").write_text("pretrain:\n  max_length: 48\nfinetune: {}\nexport: {models: {}}\n")
    (tmp_path / "other.yaml").write_text("pretrain: {max_length: 40, steps: 900}\n")
    monkeypatch.setattr(sys.modules[run.__module__], "ending_orderly", Mock(side_effect=InterruptedError))
    result = CliRunner().invoke(app, "run --config other.yaml --set pretrain.steps=500")
    assert isinstance(result.exception, InterruptedError), "the run begins"
    params = read_params(tmp_path / "params.yaml")
    assert (params.pretrain.max_length, params.pretrain.steps) == (40, 500)
    assert ("git diff" in result.output) is has_git
