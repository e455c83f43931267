"""The record of a fleet, in a real registry."""

from pathlib import Path

import pytest

from clozeline.registry.fleet import Fleet
from clozeline.registry.in_use import versions_in_use
from clozeline.registry.rollout import Entry, Replica
from clozeline.registry.versions import Registry

NAME = "clozeline-encoder"


@pytest.fixture
def address(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'mlflow.db'}"


@pytest.fixture
def registry(address: str) -> Registry:
    """Versions 1 to 3; version 1 is the champion."""
    registry = Registry.open(address)
    for number in "123":
        registry.register(NAME, source="s3://models/x", run_id="", package_sha256=number, description="")
    registry.promote(registry.version(NAME, "1"))
    return registry


@pytest.fixture
def fleet(registry: Registry, address: str) -> Fleet:
    fleet = Fleet.open(address, NAME)
    assert fleet.read().last is None
    fleet.create()
    fleet.create()  # every replica does it
    return fleet


def test_entries_and_replicas_are_read_back(fleet: Fleet) -> None:
    a, b = (Replica(key=key, url="http://10.0.0.5:8000", loaded=("1",)) for key in "ab")
    for replica in (a, b, a.model_copy(update={"answers": "1", "problem": "x" * 9000})):
        fleet.note(replica)
    first = fleet.read().next_entry()
    assert first
    fleet.append(first)
    fleet.append(first)  # sent twice, or by two replicas at once
    found = fleet.read()
    assert (found.number, found.last, found.serving, found.champion) == (1, first, "1", "1")
    assert [(one.key, one.answers, len(one.problem)) for one in found.replicas] == [("a", "1", 400), ("b", "", 0)]
    for _ in range(2):
        fleet.remove("a")
    assert fleet.read().replicas == (b,)


def test_a_poll_reads_only_what_came_since_unless_the_record_was_restored_from_a_backup(
    fleet: Fleet, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    num_read: list[int] = []
    search = fleet._client.search_model_versions

    def counted(*given: object, **more: object) -> object:
        found = search(*given, **more)
        num_read.append(len(found))
        return found

    fleet.append(Entry(kind="serve", version="1", after=0))
    fleet.append(Entry(kind="serve", version="3", after=0))  # does not count
    fleet.append(Entry(kind="hold", version="2", after=1))
    known = fleet.read()
    fleet.append(Entry(kind="serve", version="2", after=3))
    monkeypatch.setattr(fleet._client, "search_model_versions", counted)
    later = fleet.read(known)
    assert (later.number, later.serving, num_read) == (4, "2", [2])
    assert later == fleet.read()
    for number in "34":
        fleet._client.delete_model_version(f"{NAME}.fleet", number)
    assert fleet.read(later) == fleet.read()
    assert fleet.read(later).number == 1


def test_the_version_that_a_fleet_serves_is_in_use_even_if_no_alias_names_it(
    fleet: Fleet, registry: Registry, address: str
) -> None:
    fleet.append(Entry(kind="serve", version="1", after=0))
    for number in "23":
        registry.promote(registry.version(NAME, number))
    assert {version.version for version in versions_in_use(address)} == {"1", "2", "3"}
