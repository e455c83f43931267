"""A command that cannot be understood ends with the four parts of an error, whatever the verb."""

import pytest
from typer.testing import CliRunner

from clozeline.cli import app
from clozeline.errors import ParamsError


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
