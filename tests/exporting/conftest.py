"""Packages that are made in milliseconds, for tests of exams and of ranges."""

from collections.abc import Callable
from pathlib import Path

import pytest

TinyPackage = Callable[[Callable[[Path], None]], Path]


@pytest.fixture(scope="session")
def tiny_package(tmp_path_factory: pytest.TempPathFactory) -> TinyPackage:
    """`tiny_package(write_tagger)`: a folder with what that function of tests/make/packages.py writes, and no other."""

    def make(writing: Callable[[Path], None]) -> Path:
        folder = tmp_path_factory.mktemp("tiny") / "package"
        writing(folder)
        return folder

    return make
