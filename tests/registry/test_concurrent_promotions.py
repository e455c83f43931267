"""Twenty people promote at once over a real server and PostgreSQL: one champion, and a list without a gap."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from clozeline.registry.models import CHAMPION, PREVIOUS
from clozeline.registry.versions import ChampionChangedError, Registry
from tests.make.servers import server_over_postgres

pytestmark = pytest.mark.deployment  # a minute and a half: most of it, losers trying again

NUM_PEOPLE = 20


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory, free_port: Callable[[], int]) -> Iterator[str]:
    with server_over_postgres(tmp_path_factory.mktemp("server"), free_port) as server:
        yield server.url


def register(registry: Registry, name: str) -> list[str]:
    return [
        registry.register(name, source="s3://models/x", run_id="", package_sha256=str(number), description="").version
        for number in range(NUM_PEOPLE)
    ]


def champion(registry: Registry, name: str) -> str | None:
    found = registry.at(name, CHAMPION)
    return found.version if found else None


def promote_until_it_counts(registry: Registry, name: str, number: str) -> int:
    """Promote over whoever is the champion, as a person does who tries again; return the number of refusals."""
    version = registry.version(name, number)
    refused = 0
    while True:
        try:
            registry.promote(version, replacing=champion(registry, name), why=f"person {number}")
        except ChampionChangedError:
            refused += 1
        else:
            return refused


def test_twenty_promotions_at_once_end_with_one_champion_and_a_complete_history(url: str) -> None:
    registry, name = Registry.open(url), "all"
    versions = register(registry, name)
    with ThreadPoolExecutor(NUM_PEOPLE) as people:
        refused = list(people.map(lambda it: promote_until_it_counts(Registry.open(url), name, it), versions))
    assert sum(refused) > 0, "no two met"
    changes = registry.changes(name)
    assert sorted(change.after for change in changes) == sorted(versions)
    assert [change.before for change in changes] == ["", *(change.after for change in changes[:-1])]
    assert [change.why for change in changes] == [f"person {change.after}" for change in changes]
    previous = registry.at(name, PREVIOUS)
    assert (champion(registry, name), previous and previous.version) == (changes[-1].after, changes[-2].after)


def test_one_of_twenty_concurrent_promotions_over_the_same_champion_succeeds(url: str) -> None:
    registry, name = Registry.open(url), "one"
    first, *others = register(registry, name)
    registry.promote(registry.version(name, first))

    def promote(number: str) -> bool:
        mine = Registry.open(url)
        try:
            mine.promote(mine.version(name, number), replacing=first)
        except ChampionChangedError:
            return False
        return True

    with ThreadPoolExecutor(len(others)) as people:
        winners = [number for number, won in zip(others, people.map(promote, others), strict=True) if won]
    assert len(winners) == 1
    assert [change.after for change in registry.changes(name)] == [first, *winners]
    assert champion(registry, name) == winners[0]
