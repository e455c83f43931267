"""infra/ray.lock pins Ray and what it adds to requirements.lock."""

import tomllib
from importlib import metadata

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.conftest import PROJECT
from tests.house.test_lock import pins_of


def versions_of(name: str) -> dict[str, str]:
    return {canonicalize_name(pin.name): str(pin.specifier).removeprefix("==") for pin in pins_of(name)}


def test_ray_and_its_requirements_are_pinned_once() -> None:
    extra = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["ray"]
    asked = [Requirement(line) for line in [*extra, *(metadata.requires("ray") or ())] if "extra ==" not in line]
    own, others = versions_of("infra/ray.lock"), versions_of("requirements.lock")
    assert own.keys() & others.keys() == set()
    for one in asked:
        assert one.specifier.contains((own | others)[canonicalize_name(one.name)]), one
    assert own.keys() <= {canonicalize_name(one.name) for one in asked}
