"""dvc.yaml is where paths are written; a path that code names is one of them, so that none is renamed halfway."""

import re
from functools import cache

from ruamel.yaml import YAML

from tests.house.test_rooms import PROJECT, SOURCES, literals_of

FOLDERS = "(?:data|models|dist|metrics|plots|reports)/"
WRITTEN = re.compile(rf"=({FOLDERS}\S*)")
NAMED = re.compile(FOLDERS)
# Written by `clozeline report` and `clozeline sweep`, which are no stages.
ELSEWHERE = {"reports/report.html", "reports/sweep.diff"}


def paths_of_dvc(text: str) -> set[str]:
    """Return the paths in the commands of `text`, a dvc.yaml, up to the first `${`, which params.yaml fills in."""
    stages = YAML(typ="safe").load(text)["stages"].values()
    commands = [stage.get("do", stage)["cmd"] for stage in stages]
    return {path.partition("$")[0] for command in commands for path in WRITTEN.findall(command)}


@cache
def paths_of_code() -> tuple[tuple[str, str], ...]:
    """Return place and text of each literal that begins like a path."""
    return tuple(
        (f"{file.relative_to(PROJECT)}:{literal.lineno}", str(literal.value))
        for file in SOURCES
        for literal in literals_of(file)
        if NAMED.match(str(literal.value)) and literal.value not in ELSEWHERE
    )


def is_of(paths: set[str], literal: str) -> bool:
    """Return whether `literal` is one of `paths`, a folder above one, or a file in one."""
    fixed = literal.partition("*")[0]
    return any(path.startswith(fixed) or fixed.startswith(f"{path.rstrip('/')}/") for path in paths)


def astray(text: str) -> list[str]:
    paths = paths_of_dvc(text)
    return [f"{place} names {literal}" for place, literal in paths_of_code() if not is_of(paths, literal)]


def test_every_path_named_in_code_is_in_dvc_yaml() -> None:
    assert astray((PROJECT / "dvc.yaml").read_text(encoding="utf-8")) == []


def test_a_path_renamed_only_in_dvc_yaml_is_detected() -> None:
    text = (PROJECT / "dvc.yaml").read_text(encoding="utf-8")
    assert all(astray(text.replace(path, f"other/{path}")) for path in ("data/clean", "metrics/evaluate.json", "dist/"))
