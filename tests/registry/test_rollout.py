"""Which entries of a fleet's record count, which replicas are awaited, and which entry comes next."""

import pytest

from clozeline.registry.rollout import Entry, Replica, Rollout


def entry(kind: str, version: str, after: int) -> Entry:
    return Entry.model_validate({"kind": kind, "version": version, "after": after})


def replica(key: str, answers: str = "1", loaded: str = "1", held: int = 0) -> Replica:
    return Replica(key=key, url=f"http://{key}:8000", answers=answers, loaded=tuple(loaded), held=held)


SERVES_1 = (1, entry("serve", "1", 0))
HOLDS_2 = (2, entry("hold", "2", 1))
READY = (replica("a", loaded="12"), replica("b", loaded="12"))
HELD = (replica("a", loaded="12", held=2), replica("b", loaded="12", held=2))


def following(rollout: Rollout, *, held_too_long: bool = False) -> tuple[str, str, int] | None:
    found = rollout.next_entry(held_too_long=held_too_long)
    return (found.kind, found.version, found.after) if found else None


def test_the_first_replica_lets_its_fleet_serve_the_champion() -> None:
    assert following(Rollout.of([], [replica("a", answers="")], "1")) == ("serve", "1", 0)


def test_nothing_follows_without_a_champion_or_when_it_is_served() -> None:
    assert following(Rollout.of([], [], "")) is None
    assert following(Rollout.of([SERVES_1], READY, "1")) is None


def test_a_hold_waits_until_every_answering_replica_has_loaded_the_champion() -> None:
    waiting = Rollout.of([SERVES_1], [READY[0], replica("b"), replica("joins", answers="", loaded="")], "2")
    assert [one.key for one in waiting.awaited] == ["b"]
    assert following(waiting) is None
    assert following(Rollout.of([SERVES_1], READY, "2")) == ("hold", "2", 1)
    assert following(waiting.without(["b"])) == ("hold", "2", 1)


def test_the_new_version_is_served_once_every_answering_replica_holds() -> None:
    waiting = Rollout.of([SERVES_1, HOLDS_2], [HELD[0], READY[1]], "2")
    assert (waiting.serving, [one.key for one in waiting.awaited]) == ("1", ["b"])
    assert following(waiting) is None
    assert following(Rollout.of([SERVES_1, HOLDS_2], HELD, "2")) == ("serve", "2", 2)


def test_a_replica_that_held_for_an_earlier_entry_is_awaited() -> None:
    entries = [SERVES_1, HOLDS_2, (3, entry("serve", "1", 2)), (4, entry("hold", "2", 3))]
    assert len(Rollout.of(entries, HELD, "2").awaited) == 2


@pytest.mark.parametrize("champion", ["1", "3", ""])
def test_a_hold_ends_with_the_old_version_if_the_champion_moves_on(champion: str) -> None:
    assert following(Rollout.of([SERVES_1, HOLDS_2], HELD, champion)) == ("serve", "1", 2)


def test_a_hold_that_lasts_too_long_ends_with_the_old_version() -> None:
    assert following(Rollout.of([SERVES_1, HOLDS_2], READY, "2"), held_too_long=True) == ("serve", "1", 2)
    assert following(Rollout.of([SERVES_1, HOLDS_2], HELD, "2"), held_too_long=True) == ("serve", "2", 2)


def test_the_first_of_two_entries_after_the_same_one_counts() -> None:
    """One replica gives the hold up, another one finds that every replica holds: only one of them is right."""
    entries = [SERVES_1, HOLDS_2, (3, entry("serve", "1", 2)), (4, entry("serve", "2", 2))]
    assert (Rollout.of(entries, HELD, "2").serving, Rollout.of(entries, HELD, "2").number) == ("1", 3)
    assert Rollout.of(entries[::-1], HELD, "2").serving == "1"
