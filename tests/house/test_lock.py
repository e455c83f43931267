"""Each package that our code imports is required by pyproject.toml, and requirements.lock pins every package that is
installed with the project, on each Python.

corpus.lock names those of them whose docstrings are the default corpus.
"""

import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from tests.house.test_rooms import PACKAGE, SOURCES, imported_by

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
PYTHONS = ("3.11.0", "3.11.15", "3.12.0", "3.13.0", "3.14.0")
# Extras that infra/ray.lock pins.
OWN_LOCK = {"ray"}
# Installation tools: each environment brings its own.
OPEN = {"setuptools"}


def pins_of(name: str) -> list[Requirement]:
    lines = (ROOT / name).read_text(encoding="utf-8").splitlines()
    return [Requirement(line) for line in lines if not line.startswith("#")]


LOCK = pins_of("requirements.lock")


def is_for(requirement: Requirement, python: str, extra: str = "") -> bool:
    told = {"python_full_version": python, "python_version": python.rpartition(".")[0], "extra": extra}
    return requirement.marker is None or requirement.marker.evaluate(told)


def needed(python: str) -> Iterator[Requirement]:
    """Yield the requirements of the project with all its extras, their requirements, and so on."""
    extras = PROJECT["optional-dependencies"]
    lines = [*PROJECT["dependencies"], *(line for extra in extras.keys() - OWN_LOCK for line in extras[extra])]
    return required_by(map(Requirement, lines), python)


def required_by(roots: Iterable[Requirement], python: str) -> Iterator[Requirement]:
    """Yield the requirements, what they require by the metadata of the packages here, and so on."""
    waiting, seen = [*roots], set()
    while waiting:
        asked = waiting.pop()
        yield asked
        for extra in {"", *asked.extras}:
            if (asked.name, extra) not in seen:
                seen.add((asked.name, extra))
                waiting += [one for one in asked_by(asked.name) if is_for(one, python, extra)]


@cache
def asked_by(name: str) -> list[Requirement]:
    try:
        return [Requirement(line) for line in metadata.requires(name) or ()]
    except metadata.PackageNotFoundError:  # only another Python needs this package
        return []


@pytest.mark.parametrize("python", PYTHONS)
def test_every_pinned_version_satisfies_the_packages_that_require_it(python: str) -> None:
    assert python in SpecifierSet(PROJECT["requires-python"])
    pins = {canonicalize_name(pin.name): pin for pin in LOCK if is_for(pin, python)}
    asked = {one for one in needed(python) if canonicalize_name(one.name) not in OPEN}
    assert {one.name for one in asked if canonicalize_name(one.name) not in pins} == set()
    for one in asked:
        (pin,) = pins[canonicalize_name(one.name)].specifier
        assert pin.operator == "=="
        assert one.specifier.contains(pin.version, prereleases=True), f"{one}, and the lock says {pin.version}"


def test_every_pinned_package_is_required() -> None:
    required = {canonicalize_name(one.name) for python in PYTHONS for one in needed(python)}
    assert {canonicalize_name(pin.name) for pin in LOCK} - required == set()


def test_the_text_of_the_default_corpus_is_installed() -> None:
    """Otherwise the stage `snapshot` refuses the environment; requirements.lock may have more packages."""
    corpus = {str(pin) for pin in pins_of("corpus.lock")}
    assert len(corpus) > 100
    assert corpus - {str(pin) for pin in LOCK} == set()


def test_an_import_of_prefect_compiles_no_grammar_of_web_addresses() -> None:
    """jsonschema imports this package wherever it is installed, which takes 1.4 s of each process that has Prefect."""
    assert "rfc3987-syntax" not in {canonicalize_name(pin.name) for pin in LOCK}


def test_ray_and_its_requirements_are_pinned_once() -> None:
    extra = PROJECT["optional-dependencies"]["ray"]
    asked = [Requirement(line) for line in [*extra, *(metadata.requires("ray") or ())] if "extra ==" not in line]
    own, others = ({canonicalize_name(pin.name): pin for pin in pins} for pins in (pins_of("infra/ray.lock"), LOCK))
    assert own.keys() & others.keys() == set()
    assert own.keys() <= {canonicalize_name(one.name) for one in asked}
    for one in asked:
        (pin,) = (own | others)[canonicalize_name(one.name)].specifier
        assert one.specifier.contains(pin.version), one


# Rooms and files of the base install; their imports inside functions count too.
OF_THE_BASE = ("inference/", "params/", "records/", "registry/", "serving/", "system/", "tracking/", "__")
# Files of these rooms that no served model is read by.
WITH_TEXT = (
    *("records/clean_text.py", "records/published.py", "records/reading/", "records/words/"),
    *("system/arrays.py", "system/group.py", "system/workers.py"),
)
# What only the extras of few users bring: files that import it → these extras.
OF_FURTHER_EXTRAS = {
    "cli/experiments.py": ("", "sweep"),
    "cluster/": ("", "train", "ray"),
    "flows/": ("", "flows"),
    "lab/trials.py": ("", "train", "sweep"),
    "orchestration/importing.py": ("", "train", "flows"),
    "orchestration/": ("", "flows"),
    "system/supervisor.py": ("", "flows"),
    "tracking/run_logger.py": ("", "train", "tensorboard"),
    "versions/": ("", "flows"),
}
# Required packages that our code does not import → who needs them.
UNNAMED: Mapping[str, str] = {
    "alembic": "MLflow's store in SQLite",
    "fastapi": "the server of prefect, which needs an old one",
    "httptools": "uvicorn takes it where it is there",
    "pandas": "MLflow's pyfunc",
    "requests": "optimum, which does not ask for it",
    "uvloop": "uvicorn takes it where it is there",
}


def required_in(*extras: str) -> set[str]:
    """Return the distributions that these extras require; the base install is the extra ''."""
    by_extra = {"": PROJECT["dependencies"], **PROJECT["optional-dependencies"]}
    return {canonicalize_name(Requirement(line).name) for extra in extras for line in by_extra[extra]}


def imported() -> Iterator[tuple[str, str]]:
    """Yield each file of the package with each top-level package of others that it imports."""
    for file in SOURCES:
        path = file.relative_to(PACKAGE if file.is_relative_to(PACKAGE) else ROOT).as_posix()
        tops = {module.partition(".")[0] for module in imported_by(file)} - {*sys.stdlib_module_names, "clozeline"}
        yield from ((path, top) for top in sorted(tops))


def extras_of(file: str) -> tuple[str, ...]:
    for place, extras in OF_FURTHER_EXTRAS.items():
        if file.startswith(place):
            return extras
    return ("",) if file.startswith(OF_THE_BASE) and not file.startswith(WITH_TEXT) else ("", "train")


def test_each_imported_package_is_required_by_the_extra_of_its_room_and_each_required_one_is_imported() -> None:
    owners = {
        top: {canonicalize_name(owner) for owner in names} for top, names in metadata.packages_distributions().items()
    }
    found = list(imported())
    assert {top for file, top in found if file == "inference/open_model.py"} == {"numpy", "onnxruntime"}
    # Not all extras are installed.
    assert [one for one in found if not owners.get(one[1], {one[1]}) & required_in(*extras_of(one[0]))] == []
    used = set().union(*(owners.get(top, set()) for _, top in found))
    assert required_in("", "train", "flows") - used == set(UNNAMED)


def test_the_base_install_requires_no_training_or_orchestration_package() -> None:
    heavy = {"datasets", "dvc", "mlflow", "optimum", "prefect", "pyarrow", "torch", "transformers"}
    assert required_in("") & heavy == set()
    assert required_in("") & required_in("train", "flows") == set()
