"""An error says what is wrong and what to do, has an exit code of its own, and survives a process border."""

import ast
import copy
import importlib
import inspect
import pickle
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from clozeline.system import errors
from clozeline.system.errors import ArtifactError, ClozelineError

SOURCE = Path(errors.__file__).parents[1]
LEAVES = [kind for kind in vars(errors).values() if isinstance(kind, type) and ClozelineError in kind.__bases__]


def test_a_message_states_what_is_wrong_and_what_to_do() -> None:
    assert str(ClozelineError("the cup holds air", do="pour")) == "the cup holds air\n  do: pour"


def test_what_was_given_and_what_was_expected_are_shown_only_if_they_were_given() -> None:
    told = str(ClozelineError("the cup is empty", given=0, expected="tea", do="pour"))
    assert told.splitlines() == ["the cup is empty", "  given:    0", "  expected: tea", "  do:       pour"]
    assert str(ClozelineError("cups leak", given="a, b", do="seal")) == "cups leak\n  given: a, b\n  do:    seal"


def test_the_cause_is_told_without_the_remedy() -> None:
    assert ClozelineError("the cup holds air", do="pour").cause == "the cup holds air"
    assert ClozelineError("cups leak", given="a, b", do="seal").cause == "cups leak (a, b)"


def test_every_error_class_has_a_distinct_exit_code() -> None:
    codes = [leaf.exit_code for leaf in LEAVES]
    assert len(LEAVES) == 9
    assert len(set(codes)) == len(codes)
    assert 0 not in codes
    assert ClozelineError.exit_code not in codes


def test_the_docstring_shows_every_error_class() -> None:
    assert errors.__doc__ is not None
    for leaf in LEAVES:
        assert leaf.__name__ in errors.__doc__


def test_only_transient_errors_have_the_exit_code_for_a_retry() -> None:
    assert [leaf.__name__ for leaf in LEAVES if leaf.exit_code == 75] == ["TransientError"]


def error_classes() -> list[type[Exception]]:
    """Return every exception class that the package defines."""
    found = []
    for file in SOURCE.rglob("*.py"):
        names = [node.name for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.ClassDef)]
        if errors_here := [name for name in names if name.endswith("Error")]:
            module = importlib.import_module(".".join(file.relative_to(SOURCE.parent).with_suffix("").parts))
            found += [getattr(module, name) for name in errors_here]
    return [kind for kind in found if issubclass(kind, Exception)]


def made(kind: type[Exception]) -> Exception:
    """Return an error of this class with a different value for each parameter."""
    if kind.__init__ is Exception.__init__:
        return kind("the problem")
    values = {name: 7 if name.endswith("_seconds") else f"the {name}" for name in inspect.signature(kind).parameters}
    return kind(**values)


def unpickled(error: Exception) -> Exception:
    again: Exception = pickle.loads(pickle.dumps(error))  # noqa: S301  # its own pickle
    return again


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, unpickled])
@pytest.mark.parametrize("kind", error_classes(), ids=lambda kind: kind.__name__)
def test_an_error_survives_copying_and_pickling(kind: type[Exception], again: Callable[[Exception], Exception]) -> None:
    error = made(kind)
    error.add_note("while the kettle boiled")
    other = again(error)
    assert type(other) is kind
    assert (other.args, vars(other), str(other)) == (error.args, vars(error), str(error))


def test_error_classes_with_extra_fields_are_tested_too() -> None:
    assert {"TextError", "ReleaseRefusedError", "UnknownKeyError"} <= {kind.__name__ for kind in error_classes()}


@pytest.mark.parametrize(
    "url",
    [
        "https://ann:s3cret@mlflow.example/api",
        "postgresql://:s3cret@db/tickets",
        "https://host/file.csv?a=1&sig=s3cret",
        "https://host/file.csv?X-Amz-Signature=s3cret&b=2",
        "postgresql://db/tickets?user=ann&password=s3cret",
    ],
)
def test_no_part_of_an_error_shows_a_secret_of_a_url(url: str) -> None:
    error = ArtifactError(f"{url} does not answer", given=url, do=f"correct {url}")
    assert "s3cret" not in str(error)
    assert "s3cret" not in repr(error)
    assert urlsplit(url).hostname in str(error)
