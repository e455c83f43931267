"""Claims about each line of the code: how long and how named it is, what an error says, and which names it uses."""

import ast
import itertools
import re
import sys
from collections.abc import Callable, Iterator
from functools import cache

import pytest
from ruamel.yaml import YAML

from clozeline.system import errors
from clozeline.system.errors import ClozelineError
from tests.house.test_rooms import PACKAGE, PROJECT, SOURCES, literals_of, nodes_of

MOST_LINES = 450
MOST_FUNCTION_LINES = 60
# Files with more lines than that, and how many they may have; no file is added, and no number rises.
TOO_LONG = {
    "cluster/ray_jobs.py": 496,
    "inference/tokenization.py": 461,
}
NAMES_OF_NOTHING = {"utils", "util", "helpers", "common", "base", "core", "misc", "manager", "factory"}
# Package → its modules that its documentation names.
DOCUMENTED = {
    "prefect": {
        *("artifacts", "blocks", "cache_policies", "client", "events", "exceptions", "futures", "states", "workers")
    },
    "mlflow": {"artifacts", "entities", "exceptions", "models", "pyfunc", "tracking"},
}
# Constructions of errors that say in a part of its own what was expected. Lower it when one says so in its problem.
MOST_WITH_EXPECTED = 194
FUNCTION = ast.FunctionDef | ast.AsyncFunctionDef


def test_files_are_small_and_named_after_their_content() -> None:
    lines = {file: len(file.read_text(encoding="utf-8").splitlines()) for file in SOURCES}
    long = {str(file.relative_to(PACKAGE)): number for file, number in lines.items() if number > MOST_LINES}
    assert {name: number for name, number in long.items() if number > TOO_LONG.get(name, 0)} == {}
    stems = [file.stem for file in SOURCES]
    assert set(stems) & NAMES_OF_NOTHING == set()
    assert [stems.count(general) for general in ("rows", "kinds", "task")] == [1, 1, 1]


def name_of(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


@cache
def error_names() -> frozenset[str]:
    """Return the classes of `clozeline.system.errors`, and those that the code derives from them."""
    names = {name for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, ClozelineError)}
    classes = [node for file in SOURCES for node in nodes_of(file) if isinstance(node, ast.ClassDef)]
    while more := {one.name for one in classes if {*map(name_of, one.bases)} & names} - names:
        names |= more
    return frozenset(names)


def is_error(node: ast.AST | None) -> bool:
    return isinstance(node, ast.Call) and name_of(node.func) in error_names()


def is_undocumented(node: ast.AST, package: str) -> bool:
    module = node.module or "" if isinstance(node, ast.ImportFrom) else ""
    return module.startswith(f"{package}.") and module.split(".")[1] not in DOCUMENTED[package]


# Rule → whether a node breaks it, and the files that have to.
RULES: dict[str, tuple[Callable[[ast.AST], bool], set[str]]] = {
    "a function fits a screen": (
        lambda node: isinstance(node, FUNCTION) and (node.end_lineno or 0) - node.lineno + 1 > MOST_FUNCTION_LINES,
        set(),
    ),
    # A process that counts the machine's cores misses a container's quota, and starts too many threads.
    "one file counts the cores of a container": (
        lambda node: (
            isinstance(node, ast.Attribute) and node.attr in {"sched_getaffinity", "cpu_count", "process_cpu_count"}
        ),
        {"src/clozeline/system/machine.py"},
    ),
    "undocumented parts of Prefect are imported in one file": (
        lambda node: is_undocumented(node, "prefect"),
        {"src/clozeline/orchestration/prefect_adapter.py"},
    ),
    "undocumented parts of MLflow are imported in one file": (
        lambda node: is_undocumented(node, "mlflow"),
        {"src/clozeline/tracking/mlflow.py"},
    ),
    "an error says what to do": (
        lambda node: is_error(node) and "do" not in {keyword.arg for keyword in node.keywords},
        set(),
    ),
    "an error is raised, returned or handed over where it is made, not kept in a variable": (
        lambda node: isinstance(node, ast.Assign | ast.AnnAssign | ast.NamedExpr) and is_error(node.value),
        set(),
    ),
}


@pytest.mark.parametrize("rule", RULES)
def test_each_rule_is_kept_in_every_file(rule: str) -> None:
    breaks, allowed = RULES[rule]
    places = {
        str(file.relative_to(PROJECT)): node.lineno for file in SOURCES for node in nodes_of(file) if breaks(node)
    }
    assert places.keys() == allowed, places


def test_fewer_and_fewer_errors_have_a_part_for_what_was_expected() -> None:
    made = [node for file in SOURCES for node in nodes_of(file) if isinstance(node, ast.Call) and is_error(node)]
    assert len(made) > 300, "the search finds them"
    assert sum(keyword.arg == "expected" for node in made for keyword in node.keywords) <= MOST_WITH_EXPECTED


# File → private name of another package.
IN_USE = {
    ("src/clozeline/cli/verbs.py", "typer._click.core"),  # typer shows no other name of the errors it prints
    ("src/clozeline/cli/verbs.py", "typer._click.exceptions"),
    ("src/clozeline/encoder/checkpoints.py", "_supports_sdpa"),
    ("src/clozeline/exporting/to_onnx.py", "_config"),  # where the base class keeps its configuration
    ("src/clozeline/exporting/forms.py", "_check"),  # torch's guide to its exporter says to call it
    ("src/clozeline/orchestration/prefect_adapter.py", "_apprise_client"),
    ("src/clozeline/planning/costs.py", "_attn_implementation"),
    ("src/clozeline/tokenizing/tokenizer/vocabulary/opening.py", "_special_tokens_map"),
}
# Python documents these.
OF_NAMED_TUPLES = {"_fields", "_replace"}


def is_private(name: str) -> bool:
    return any(part.startswith("_") and not part.startswith("__") and part != "_" for part in name.split("."))


@cache
def own_names() -> frozenset[str]:
    """Return the names that our code defines or assigns, as an attribute or not."""
    names = set[str]()
    for node in (node for file in SOURCES for node in nodes_of(file)):
        if isinstance(node, FUNCTION | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
            names.add(name_of(node))
    return frozenset(names)


def private_names_of_others(nodes: list[ast.AST]) -> Iterator[str]:
    """Yield the names that a file uses of others; `packages` are those that it imports whole."""
    imported = [alias for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    own, ours = {"clozeline", *sys.stdlib_module_names}, own_names() | OF_NAMED_TUPLES
    packages = {(one.asname or one.name).partition(".")[0] for one in imported if one.name.partition(".")[0] not in own}
    yield from (alias.name for alias in imported)
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and not (node.module or "").startswith("clozeline"):
            yield from [node.module or ""] if is_private(node.module or "") else (alias.name for alias in node.names)
        elif isinstance(node, ast.Attribute):
            owner = node.value.id if isinstance(node.value, ast.Name) else ""
            if owner in packages or not (owner in sys.stdlib_module_names or node.attr in ours):
                yield node.attr
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in {"getattr", "hasattr"}:
            name = node.args[1]
            if isinstance(name, ast.Constant) and name.value not in own_names():
                yield str(name.value)


def test_the_private_names_used_from_other_packages_match_the_list() -> None:
    """None of them is used where a request is answered."""
    found = {
        (str(file.relative_to(PROJECT)), name)
        for file in SOURCES
        for name in private_names_of_others(nodes_of(file))
        if is_private(name)
    }
    assert found == IN_USE
    rooms = tuple(f"src/clozeline/{room}/" for room in ("serving", "inference", "choosing", "artifacts"))
    assert [(file, name) for file, name in IN_USE if file.startswith(rooms)] == []


# So many equal fields, by name and type, that make up most of the smaller class are one shape.
NUM_SHARED = 5
SHARE = 0.75


def test_no_shape_is_typed_twice_but_for_one_of_which_clients_get_a_described_schema() -> None:
    shapes = {
        f"{file.relative_to(PROJECT).as_posix()}:{node.name}": {
            (line.target.id, ast.unparse(line.annotation))
            for line in node.body
            if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name)
        }
        for file in SOURCES
        for node in nodes_of(file)
        if isinstance(node, ast.ClassDef)
    }
    large = {name: fields for name, fields in shapes.items() if len(fields) >= NUM_SHARED}
    twice = {
        tuple(name.removeprefix("src/clozeline/") for name in sorted((one, other)))
        for (one, fields), (other, other_fields) in itertools.combinations(large.items(), 2)
        if len(fields & other_fields) >= max(NUM_SHARED, SHARE * min(len(fields), len(other_fields)))
    }
    assert twice == {("serving/http/status.py:ModelCard", "serving/loading.py:Identity")}


FOLDERS = "(?:data|models|dist|metrics|plots|reports)/"
WRITTEN = re.compile(rf"=({FOLDERS}\S*)")
NAMED = re.compile(FOLDERS)
# Written by `clozeline report` and `clozeline sweep`, which are no stages.
ELSEWHERE = {"reports/report.html", "reports/sweep.diff"}


def astray(text: str) -> list[str]:
    """Return the paths in our code that no command of `text`, a dvc.yaml, uses.

    A command uses a path of its own up to the first `${`, which params.yaml fills in, the folders above it, and the
    files in it.
    """
    stages = YAML(typ="safe").load(text)["stages"].values()
    written = {path.partition("$")[0] for stage in stages for path in WRITTEN.findall(stage.get("do", stage)["cmd"])}
    literals = {str(literal.value) for file in SOURCES for literal in literals_of(file)} - ELSEWHERE
    return [
        literal
        for literal in literals
        if NAMED.match(literal)
        if not any(
            path.startswith(literal.partition("*")[0]) or literal.partition("*")[0].startswith(f"{path.rstrip('/')}/")
            for path in written
        )
    ]


def test_every_path_named_in_code_is_in_dvc_yaml_so_that_none_is_renamed_halfway() -> None:
    text = (PROJECT / "dvc.yaml").read_text(encoding="utf-8")
    assert astray(text) == []
    assert all(astray(text.replace(path, f"other/{path}")) for path in ("data/clean", "metrics/evaluate.json", "dist/"))
