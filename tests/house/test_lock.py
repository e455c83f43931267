"""requirements.lock pins every package that is installed with the project, on each Python of pyproject.toml.

corpus.lock names those of them whose docstrings are the default corpus.
"""

import tomllib
from collections.abc import Iterable, Iterator
from functools import cache
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

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
