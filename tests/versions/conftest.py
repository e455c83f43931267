"""An object store for the tests of remotes."""

from collections.abc import Iterator

import pytest

from tests.make.stores import KEYS, ObjectStore


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[ObjectStore]:
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    with ObjectStore().serving() as store:
        yield store
