"""Claim: the built wheel declares every package that it imports."""

import ast
import subprocess
import sys
import zipfile
from collections.abc import Iterator, Mapping
from email.parser import Parser
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

PROJECT = Path(__file__).parents[2]
# Rooms and files of the base install; their imports inside functions count too.
OF_THE_BASE = (
    "inference",
    "params",
    "records",
    "registry",
    "serving",
    "system",
    "tracking",
    "__init__.py",
    "__main__.py",
)
# Files of these rooms that no served model is read by.
WITH_TEXT = (
    *("records/clean_text.py", "records/published.py", "records/reading/", "records/words/"),
    *("system/arrays.py", "system/group.py", "system/workers.py"),
)
OF_THE_FLOWS = ("flows", "orchestration", "versions")
# Files that import what only the extras of few users bring → these extras.
OF_FURTHER_EXTRAS: Mapping[str, tuple[str, ...]] = {
    "cli/experiments.py": ("sweep",),
    "lab/trials.py": ("train", "sweep"),
    "orchestration/importing.py": ("train", "flows"),
    "system/supervisor.py": ("flows",),
    "tracking/run_logger.py": ("train", "tensorboard"),
}
EXTRAS = ("train", "flows", "dev", "sweep", "tensorboard")
# Required packages that our code does not import → who needs them.
UNNAMED: Mapping[str, str] = {
    "alembic": "MLflow's store in SQLite",
    "fastapi": "the server of prefect, which needs an old one",
    "httptools": "uvicorn takes it where it is there",
    "pandas": "MLflow's pyfunc",
    "requests": "optimum, which does not ask for it",
    "uvloop": "uvicorn takes it where it is there",
}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """Wheel built from a copy of the files in git, so that the checkout stays clean, and without a package index."""
    folder = tmp_path_factory.mktemp("wheel")
    listed = subprocess.run(
        ["git", "ls-files", "-z", "src", "flows"], cwd=PROJECT, capture_output=True, text=True, check=True
    )
    for name in ("pyproject.toml", "README.md", "LICENSE", *filter(None, listed.stdout.split("\0"))):
        if (PROJECT / name).is_file():
            (folder / "tree" / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / "tree" / name).write_bytes((PROJECT / name).read_bytes())
    (folder / "tree/src/clozeline/flows").symlink_to("../../flows")
    options = ["--no-deps", "--no-build-isolation", "--no-index", "--quiet", "--wheel-dir", str(folder)]
    subprocess.run([sys.executable, "-m", "pip", "wheel", *options, str(folder / "tree")], check=True)
    return zipfile.ZipFile(next(folder.glob("*.whl")))


@pytest.fixture(scope="module")
def asked(wheel: zipfile.ZipFile) -> dict[str, set[str]]:
    """Extra → its required distributions; the base install is the extra ''."""
    (told,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
    by_extra: dict[str, set[str]] = {}
    for line in Parser().parsestr(wheel.read(told).decode("utf-8")).get_all("Requires-Dist") or ():
        requirement = Requirement(line)
        extra = next((name for name in EXTRAS if f'"{name}"' in str(requirement.marker)), "")
        by_extra.setdefault(extra, set()).add(canonicalize_name(requirement.name))
    return by_extra


@pytest.fixture(scope="module")
def imported(wheel: zipfile.ZipFile) -> dict[str, set[str]]:
    """Path of each file in the wheel's package → the top-level packages of others that it imports."""
    files = [name for name in wheel.namelist() if name.startswith("clozeline/") and name.endswith(".py")]
    return {name.partition("/")[2]: set(_imported(wheel.read(name).decode("utf-8"))) for name in files}


def _imported(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = [node.module]
        tops = {name.partition(".")[0] for name in names}
        yield from tops - {*sys.stdlib_module_names, "clozeline"}


def _extras_of(file: str) -> tuple[str, ...]:
    if file in OF_FURTHER_EXTRAS:
        return ("", *OF_FURTHER_EXTRAS[file])
    room = file.partition("/")[0]
    if room in OF_THE_BASE and not file.startswith(WITH_TEXT):
        return ("",)
    return ("", "flows") if room in OF_THE_FLOWS else ("", "train")


def test_each_imported_package_is_required_by_the_extra_of_its_room(
    asked: dict[str, set[str]], imported: dict[str, set[str]]
) -> None:
    owners = packages_distributions()
    assert imported["inference/open_model.py"] == {"numpy", "onnxruntime"}, "the files of the wheel were read"
    undeclared = [
        f"{file} imports {top}"
        for file, tops in imported.items()
        for top in sorted(tops)
        if not {canonicalize_name(owner) for owner in owners.get(top, (top,))}  # not all extras are installed
        & set().union(*(asked[extra] for extra in _extras_of(file)))
    ]
    assert undeclared == []


def test_every_declared_dependency_is_imported_or_has_a_reason(
    asked: dict[str, set[str]], imported: dict[str, set[str]]
) -> None:
    owners = packages_distributions()
    tops = set().union(*imported.values())
    used = {canonicalize_name(owner) for top in tops for owner in owners.get(top, ())}
    declared = asked[""] | asked["train"] | asked["flows"]
    assert declared - used == set(UNNAMED)


def test_the_base_install_requires_no_training_or_orchestration_package(asked: dict[str, set[str]]) -> None:
    assert not asked[""] & {"datasets", "dvc", "mlflow", "optimum", "prefect", "pyarrow", "torch", "transformers"}
    assert asked[""] & (asked["train"] | asked["flows"]) == set()
