"""Replicas that look at one registry in any order, with clocks that differ, never answer by two versions at once."""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import cast

import pytest

from clozeline.inference.open_model import OpenModel
from clozeline.registry.models import Announcement, Registered
from clozeline.registry.sources import ModelSource
from clozeline.serving import watching
from clozeline.serving.loading import Identity, LoadedModel, ServedModel
from clozeline.serving.models import Capacity, Service
from clozeline.serving.turns import SKEW_SECONDS, VersionTurns
from clozeline.serving.watching import Watcher
from clozeline.system.errors import ArtifactError, TransientError

SOURCE = ModelSource("encoder", "models:/clozeline-encoder@champion", is_in_fleet=True)
NOTICE_SECONDS = 60.0
START_SECONDS = 1_800_000_000.0


class Replica:
    """A server of a fleet whose clock is `ahead_seconds` ahead."""

    def __init__(self, world: "World", ahead_seconds: float) -> None:
        self._world = world
        self.service = Service(Capacity(num_workers=1))
        self.service.schedule.clock = lambda: world.seconds + ahead_seconds
        self._watcher = Watcher(self.service, [SOURCE], "int8", 10, world.live_version)
        world.acting = self
        self.service.open(self._watcher.load())

    def look(self) -> None:
        self._world.acting = self
        self._watcher.look()

    @property
    def answer(self) -> str | None:
        """Version that a request gets that names none; None: 503, or it waits."""
        schedule = self.service.schedule
        if schedule.seconds_to_wait() > 0 or not schedule.answers:
            return None
        return self.service.catalogue.named("encoder").identity.version

    @property
    def is_ready(self) -> bool:
        return self.service.phase == "ready"


@dataclass
class World:
    """The registry and the replicas. Time passes by `pass_time` only."""

    seconds: float = START_SECONDS
    champion: str = "1"
    announcements: dict[str, Announcement] = field(default_factory=dict)
    cannot_load: dict[str, set[Replica]] = field(default_factory=dict)
    replicas: list[Replica] = field(default_factory=list)
    acting: Replica | None = None
    is_away: bool = False
    after_loading: Callable[[], None] = lambda: None

    def promote(self, version: str, notice_seconds: float = NOTICE_SECONDS) -> None:
        self.announcements[version] = Announcement(self.seconds, self.seconds + notice_seconds)
        self.champion = version

    def live_version(self, uri: str) -> Registered:
        if self.is_away:
            raise TransientError("the model registry does not answer", given=uri, expected="an answer", do="wait")
        announcement = self.announcements.get(self.champion)
        return Registered("encoder", self.champion, "", "", was_rolled_back=False, announcement=announcement)

    def open_source(self, source: ModelSource, precision: str) -> LoadedModel:
        if self.acting in self.cannot_load.get(self.champion, set()):
            raise ArtifactError("the graph is damaged", given=self.champion, expected="a graph", do="restore it")
        identity = Identity("encoder", source.place, self.champion, "", "int8")
        self.after_loading()
        return ServedModel(identity, cast("OpenModel", SimpleNamespace(manifest=SimpleNamespace(task="fill-mask"))))

    def join(self, ahead_seconds: float = 0.0) -> Replica:
        self.replicas.append(Replica(self, ahead_seconds))
        return self.replicas[-1]

    def pass_time(self, seconds: float, *, times: int = 1, look: bool = True) -> None:
        for _ in range(times):
            self.seconds += seconds
            for replica in self.replicas if look else []:
                replica.look()

    @property
    def answers(self) -> list[str | None]:
        return [replica.answer for replica in self.replicas]


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """Three replicas that have answered by version 1 for long."""
    world = World()
    monkeypatch.setattr(watching, "open_source", world.open_source)
    world.promote("1", 0)
    world.pass_time(1000)
    for _ in range(3):
        world.join()
    assert world.answers == ["1", "1", "1"]
    yield world
    for replica in world.replicas:
        replica.service.close()


def test_all_replicas_change_at_the_announced_moment_and_back_the_same_way(world: World) -> None:
    for before, after in ("12", "21"):
        world.promote(after)
        world.pass_time(NOTICE_SECONDS - 1)
        assert world.answers == [before] * 3
        world.pass_time(1, look=False)
        assert world.answers == [None] * 3, "requests wait for a moment: clocks differ"
        assert [replica.is_ready for replica in world.replicas] == [True] * 3
        world.pass_time(SKEW_SECONDS, look=False)
        assert world.answers == [after] * 3


def test_a_replica_that_cannot_load_is_not_ready_in_time_and_answers_again_after_the_rollback(world: World) -> None:
    late = world.replicas[1]
    world.promote("2")
    world.cannot_load["2"] = {late}
    world.pass_time(0.7 * NOTICE_SECONDS)
    assert (late.is_ready, world.answers) == (True, ["1"] * 3)
    world.pass_time(0.1 * NOTICE_SECONDS)
    assert (late.is_ready, world.answers) == (False, ["1"] * 3), "the load balancer learns it before the turn"
    world.pass_time(0.3 * NOTICE_SECONDS)
    assert world.answers == ["2", None, "2"]
    world.promote("1")
    world.pass_time(1)
    assert world.answers == ["2", None, "2"], "version 1 comes back at one moment, too"
    world.pass_time(NOTICE_SECONDS)
    assert world.answers == ["1", "1", "1"]
    assert late.is_ready


def test_a_version_that_is_taken_back_while_it_loads_is_never_answered(world: World) -> None:
    world.promote("2")
    world.after_loading = lambda: world.promote("1")
    for _ in range(10):
        world.pass_time(0.3 * NOTICE_SECONDS)
        assert world.answers == ["1"] * 3
        assert all(replica.is_ready for replica in world.replicas)


def test_a_shorter_notice_overtakes_a_longer_one() -> None:
    turns = VersionTurns("1").followed_by("2", Announcement(0, 60)).followed_by("3", Announcement(40, 50))
    assert [turn.version for turn in turns.coming] == ["3"]


def test_an_alias_moved_without_clozeline_is_followed_by_each_replica_once_it_has_loaded(world: World) -> None:
    world.promote("2")
    world.pass_time(1000, times=2)
    world.cannot_load["1"] = {world.replicas[2]}
    world.champion = "1"
    world.pass_time(10)
    assert world.answers == ["1", "1", "2"]
    assert world.replicas[2].is_ready


def test_an_absent_registry_changes_nothing_but_a_loaded_version_has_its_turn(world: World) -> None:
    world.pass_time(500)
    world.promote("2")
    world.pass_time(5)
    world.is_away = True
    world.pass_time(NOTICE_SECONDS, times=3)
    assert world.answers == ["2"] * 3


@pytest.mark.parametrize("seed", range(5))
def test_no_order_of_looks_and_changes_lets_two_versions_answer(world: World, seed: int) -> None:
    """Replicas look at least every 20 s, start, are killed, or cannot load; the champion moves at any time."""
    chance = random.Random(seed)
    next_looks = dict.fromkeys(world.replicas, world.seconds)
    for _ in range(2000):
        world.pass_time(0.25, look=False)
        dice = chance.random()
        if dice < 0.004:
            version = chance.choice([one for one in "123" if one != world.champion])
            world.promote(version)
            world.cannot_load[version] = {one for one in world.replicas if chance.random() < 0.2}
        elif dice < 0.006 and len(world.replicas) > 1:
            killed = world.replicas.pop(chance.randrange(len(world.replicas)))
            killed.service.close()
        elif dice < 0.01 and len(world.replicas) < 5:
            next_looks[world.join(chance.uniform(-SKEW_SECONDS / 2, SKEW_SECONDS / 2))] = world.seconds
        for replica in world.replicas:
            if world.seconds >= next_looks[replica]:
                replica.look()
                next_looks[replica] = world.seconds + chance.uniform(1, 20)
        assert len(set(world.answers) - {None}) <= 1
    world.cannot_load.clear()
    world.pass_time(10, times=40)
    assert set(world.answers) == {world.champion}
