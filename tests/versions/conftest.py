"""An object store for the tests of remotes."""

from collections.abc import Iterator

import pytest

from tests.object_store import ObjectStore


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[ObjectStore]:
    for name, value in {"ACCESS_KEY_ID": "key", "SECRET_ACCESS_KEY": "secret", "DEFAULT_REGION": "us-east-1"}.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    with ObjectStore().serving() as store:
        yield store
