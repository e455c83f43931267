"""The folder listing is the architecture: who may import what, and how things are called."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[2]
PACKAGE = PROJECT / "src" / "clozeline"
SOURCES = [*sorted(PACKAGE.rglob("*.py")), *sorted((PROJECT / "flows").rglob("*.py"))]
CALLERS = {
    "cli": "what a person types: it calls rooms, stages and flows",
    "demo": "what `clozeline demo` does: two stages and a training, in a folder of its own",
    "stages": "what DVC runs: each calls rooms",
}
"""Folders that put rooms together. Every other folder is a room."""
ROOMS = [folder.parent.name for folder in sorted(PACKAGE.glob("*/__init__.py")) if folder.parent.name not in CALLERS]


@cache
def nodes_of(file: Path) -> list[ast.AST]:
    return list(ast.walk(ast.parse(file.read_text(encoding="utf-8"))))


def imported_by(file: Path) -> Iterator[str]:
    for node in nodes_of(file):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def importers_of(*names: str) -> set[str]:
    """Files, as paths in the project, that import any of `names` or something in it."""
    return {
        str(file.relative_to(PROJECT))
        for file in SOURCES
        if any(module == name or module.startswith(f"{name}.") for module in imported_by(file) for name in names)
    }


def only_in(*places: str, importers: set[str]) -> bool:
    return all(any(file.startswith(place) for place in places) for file in importers)


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_imports_no_stage_no_flow_and_nothing_else_that_calls_rooms(room: str) -> None:
    importers = importers_of("flows", *(f"clozeline.{caller}" for caller in CALLERS))
    assert not any(file.startswith(f"src/clozeline/{room}/") for file in importers)


def test_stages_do_not_import_each_other() -> None:
    assert not any(file.startswith("src/clozeline/stages/") for file in importers_of("clozeline.stages"))


def test_only_the_command_line_calls_the_demo() -> None:
    assert only_in("src/clozeline/cli/", "src/clozeline/demo/", importers=importers_of("clozeline.demo"))


def test_only_flows_import_prefect() -> None:
    assert only_in("flows/", importers=importers_of("prefect"))


def test_only_tracking_registry_and_lineage_import_mlflow() -> None:
    places = ("src/clozeline/tracking", "src/clozeline/registry", "src/clozeline/lineage")
    assert only_in(*places, importers=importers_of("mlflow"))


def test_only_inference_imports_onnxruntime() -> None:
    assert only_in("src/clozeline/inference/", importers=importers_of("onnxruntime"))


def test_only_model_and_its_users_of_stock_tokenizers_import_transformers() -> None:
    importers = importers_of("transformers")
    places = ("encoder/", "tasks/", "tokenizer/", "contest/", "evaluation/", "exporting/", "collator/")
    assert only_in(*(f"src/clozeline/{place}" for place in places), importers=importers)


def test_one_file_counts_the_cores_of_a_container() -> None:
    """A process that asks the machine itself does not hear of a container's quota, and takes too many threads."""
    asking = {
        str(file.relative_to(PROJECT))
        for file in SOURCES
        for node in nodes_of(file)
        if isinstance(node, ast.Attribute) and node.attr in {"sched_getaffinity", "cpu_count", "process_cpu_count"}
    }
    assert asking == {"src/clozeline/machine/cores.py"}


@pytest.mark.parametrize("file", SOURCES, ids=lambda file: str(file.relative_to(PROJECT)))
def test_a_file_is_small_and_named_for_what_it_holds(file: Path) -> None:
    assert file.stem not in {"utils", "util", "helpers", "common", "base", "core", "misc", "manager", "factory"}
    assert len(file.read_text(encoding="utf-8").splitlines()) <= 300


def functions() -> list[tuple[str, int]]:
    return [
        (f"{file.relative_to(PROJECT)}:{node.name}", (node.end_lineno or 0) - node.lineno + 1)
        for file in SOURCES
        for node in nodes_of(file)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]


def test_a_function_fits_a_screen() -> None:
    assert [(name, length) for name, length in functions() if length > 60] == []


def test_importing_clozeline_is_quiet_and_loads_nothing_heavy(tmp_path: Path) -> None:
    heavy = "{'torch', 'transformers', 'mlflow', 'onnxruntime', 'prefect', 'dvc', 'numpy'}"
    code = f"import clozeline, sys; print(sorted({heavy} & set(sys.modules)), end='')"
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True, env={}
    )
    assert result.stdout == "[]"
    assert result.stderr == ""
    assert list(tmp_path.iterdir()) == []


def test_nothing_in_the_tree_names_a_registry_host_or_a_path_of_one_machine() -> None:
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=PROJECT, capture_output=True, text=True, check=True)
    for name in filter(None, tracked.stdout.split("\0")):
        content = (PROJECT / name).read_bytes()
        for told in (
            b"pypi" + b".org",
            b"registry" + b".npmjs",
            b"/wo" + b"rk/main",
            b"/wo" + b"rk/shared",
            b"/opt/" + b"pypi",
        ):
            assert told not in content, f"{name} has {told.decode()}"
