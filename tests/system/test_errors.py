"""An error says what is wrong and what to do, has an exit code of its own, and survives a process border."""

import ast
import copy
import importlib
import inspect
import pickle
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from clozeline.system import errors
from clozeline.system.errors import ArtifactError, ClozelineError

SOURCE = Path(errors.__file__).parents[1]
LEAVES = [kind for kind in vars(errors).values() if isinstance(kind, type) and ClozelineError in kind.__bases__]


def test_a_message_states_what_is_wrong_what_was_given_and_expected_and_what_to_do() -> None:
    error = ClozelineError("the cup leaks", given=0, expected="tea", do="seal")
    assert str(error).splitlines() == ["the cup leaks", "  given:    0", "  expected: tea", "  do:       seal"]
    assert error.cause == "the cup leaks (0)"
    assert str(ClozelineError("the cup leaks", do="seal")).splitlines() == ["the cup leaks", "  do: seal"]


def test_every_error_class_is_documented_and_has_a_distinct_exit_code() -> None:
    """75 is the code for a retry."""
    codes = {leaf.__name__: leaf.exit_code for leaf in LEAVES}
    assert len(codes) == len({*codes.values()} - {0, ClozelineError.exit_code}) == 9
    assert [name for name, code in codes.items() if code == 75] == ["TransientError"]
    assert all(name in str(errors.__doc__) for name in codes)


def error_classes() -> list[type[Exception]]:
    """Return every exception class that the package defines."""
    found = []
    for file in SOURCE.rglob("*.py"):
        names = [node.name for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.ClassDef)]
        if errors_here := [name for name in names if name.endswith("Error")]:
            module = importlib.import_module(".".join(file.relative_to(SOURCE.parent).with_suffix("").parts))
            found += [getattr(module, name) for name in errors_here]
    assert {"TextError", "ReleaseRefusedError", "UnknownKeyError"} <= {kind.__name__ for kind in found}
    return [kind for kind in found if issubclass(kind, Exception)]


def made(kind: type[Exception]) -> Exception:
    """Return an error of this class with a different value for each parameter."""
    if kind.__init__ is Exception.__init__:
        return kind("the problem")
    values = {name: 7 if name.endswith("_seconds") else f"the {name}" for name in inspect.signature(kind).parameters}
    return kind(**values)


def test_every_error_survives_copying_and_pickling() -> None:
    for kind in error_classes():
        error = made(kind)
        error.add_note("while the kettle boiled")
        for other in (copy.copy(error), pickle.loads(pickle.dumps(error))):  # noqa: S301  # its own pickle
            assert type(other) is kind
            assert (other.args, vars(other), str(other)) == (error.args, vars(error), str(error))


@pytest.mark.parametrize(
    "url",
    [
        "https://ann:p@s3cret@example/data",
        "https://example/data?api_key=s3cret",
        "https://ann:s3cret@mlflow.example/api",
        "postgresql://:s3cret@db/tickets",
        "https://host/file.csv?a=1&sig=s3cret",
        "https://host/file.csv?X-Amz-Signature=s3cret&b=2",
        "postgresql://db/tickets?user=ann&password=s3cret",
        "https://s3crets3crets3crets3cret@example/data",
        "https://example/data#access_token=s3cret",
    ],
)
def test_no_part_of_an_error_shows_a_secret_of_a_url(url: str) -> None:
    error = ArtifactError(f"{url} does not answer", given=url, do=f"correct {url}")
    assert "s3cret" not in str(error)
    assert "s3cret" not in repr(error)
    assert urlsplit(url).hostname in str(error)
