"""The line chooses whose turn it is and which texts run along, and no text starves."""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clozeline.inference.open_model import OpenModel
from clozeline.registry.models import Announcement, Registered
from clozeline.registry.sources import ModelSource
from clozeline.serving import watching
from clozeline.serving.loading import Identity, LoadedModel, ServedModel
from clozeline.serving.models import Capacity, Service
from clozeline.serving.queue import (
    MAX_PADDING,
    SKEW_SECONDS,
    Lane,
    Line,
    Ticket,
    VersionTurns,
    share,
    turn_of,
    turns_of,
    window,
)
from clozeline.serving.watching import Watcher
from clozeline.system.errors import ArtifactError, TransientError
from tests.make.tickets import LANE, ticket

Requests = list[tuple[list[int], float]]
# Lengths of the texts, and arrival, of each request.
requests = st.lists(
    st.tuples(st.lists(st.integers(1, 512), min_size=1, max_size=6), st.floats(0, 5)), min_size=1, max_size=25
)
lengths_and_anchor = st.lists(st.integers(1, 600), min_size=1, max_size=60).flatmap(
    lambda lengths: st.tuples(st.just(sorted(lengths)), st.integers(0, len(lengths) - 1))
)
SOURCE = ModelSource("encoder", "models:/clozeline-encoder@champion", is_in_fleet=True)
NOTICE_SECONDS = 60.0
START_SECONDS = 1_800_000_000.0


def line_of(*tickets: Ticket, batch_tokens: int = 384) -> Line:
    line = Line(batch_tokens)
    for one in tickets:
        line.add(one)
    return line


def tickets_of(given_requests: Requests) -> list[Ticket]:
    return [ticket(*lengths, arrived=arrived) for lengths, arrived in given_requests]


def waits(one: Ticket) -> bool:
    return any(entry.shelf for entry in one.entries)


def batches_of(line: Line) -> list[list[tuple[Ticket, int]]]:
    """Take all that waits; return the tickets and positions of each batch."""
    return [[(entry.ticket, entry.position) for entry in batch.entries] for batch in iter(line.take, None)]


def due_tokens(line: Line, *, at: float) -> int:
    line.pass_time(at)
    return sum(tokens for _, tokens, is_due in line.work() if is_due)


@given(lengths_and_anchor, st.integers(1, 600))
def test_a_window_holds_the_anchor_and_fits_the_budget_with_little_padding(
    given_lengths: tuple[list[int], int], budget_tokens: int
) -> None:
    lengths, anchor = given_lengths
    low, high = window(lengths, anchor, budget_tokens=budget_tokens)
    assert 0 <= low <= anchor < high <= len(lengths)

    def fits(low: int, high: int) -> bool:
        padded = lengths[high - 1] * (high - low)
        return padded <= budget_tokens and padded - sum(lengths[low:high]) <= MAX_PADDING * padded

    assert high - low == 1 or fits(low, high)
    for wider in ((low - 1, high), (low, high + 1)):
        assert wider[0] < 0 or wider[1] > len(lengths) or not fits(*wider), "this neighbour would fit"


def test_texts_of_the_nearest_lengths_join_the_batch_of_the_oldest() -> None:
    for lengths, anchor, expected in (
        ([100] * 9, 4, (2, 5)),  # 384 tokens hold three texts; texts before the anchor come first
        ([5, 100, 101, 300], 1, (1, 3)),
        ([700], 0, (0, 1)),  # longer than the budget: it runs alone instead of waiting for ever
    ):
        assert window(lengths, anchor, budget_tokens=384) == expected


def test_idle_workers_share_the_waiting_tokens() -> None:
    for waiting_tokens, num_idle, expected in ((200, 1, 200), (201, 2, 101), (10_000, 2, 384), (40, 2, 32)):
        assert share(waiting_tokens, num_idle, 384) == expected


@given(requests, st.data())
def test_every_text_runs_once_and_waiting_texts_are_counted(given_requests: Requests, data: st.DataObject) -> None:
    """A removed ticket never runs again, and all others do."""
    tickets = tickets_of(given_requests)
    line = line_of(*tickets)
    assert line.tokens == sum(sum(lengths) for lengths, _ in given_requests)
    batch = line.take()
    assert batch
    begun = {(entry.ticket, entry.position) for entry in batch.entries}
    gone = data.draw(st.none() | st.sampled_from(tickets))
    if gone:
        line.remove(gone)
        line.remove(gone)
    assert line.tokens == sum(entry.length for one in tickets for entry in one.entries if entry.shelf)
    order = [text for batch in batches_of(line) for text in batch]
    expected = {(one, entry.position) for one in tickets if one is not gone for entry in one.entries}
    assert len(order) == len(set(order))
    assert set(order) == expected - begun
    assert (line.tokens, line.num_texts) == (0, 0)


@given(requests)
def test_the_next_batch_always_includes_a_text_with_the_earliest_turn(given_requests: Requests) -> None:
    tickets = tickets_of(given_requests)
    line = line_of(*tickets)
    while any(map(waits, tickets)):
        first = min(turn_of(one) for one in tickets if waits(one))
        batch = line.take()
        assert batch
        assert first == min(turn_of(entry.ticket) for entry in batch.entries)


@given(st.integers(1, 512), st.integers(1, 20))
def test_a_long_text_waits_for_a_bounded_time_under_a_flood_of_short_ones(tokens: int, per_second: int) -> None:
    """Short texts keep arriving faster than they run; still the long text runs within a bound known beforehand."""
    long = ticket(tokens, arrived=0)
    line = line_of(long)
    now = 0.0
    while waits(long):
        for number in range(2 * per_second):
            line.add(ticket(16, arrived=now + number / (2 * per_second)))
        for _ in range(max(1, per_second // 16)):
            line.take()
        now += 1
        assert now <= 4 + tokens / 16


def test_texts_of_two_models_never_run_together() -> None:
    one, other = ticket(10, 10), ticket(10, 10, lane=Lane(LANE.model, "sentence_embedding"))
    assert batches_of(line_of(one, other)) == [[(one, 0), (one, 1)], [(other, 0), (other, 1)]]


def test_a_text_overtakes_a_large_request_just_before_it_but_not_two_seconds_later() -> None:
    large, small, late = ticket(*[60] * 300, arrived=0), ticket(20, arrived=0.5), ticket(20, arrived=2.01)
    batches = batches_of(line_of(late, large, small, batch_tokens=64))
    assert (batches[0], batches[-1]) == ([(small, 0)], [(late, 0)])
    first, beside, later = ticket(30, arrived=0.1), ticket(33, arrived=0.5), ticket(30, arrived=3)
    assert {*batches_of(line_of(later, beside, first))[0]} == {(first, 0), (beside, 0)}


def test_the_texts_of_a_bulk_request_have_consecutive_turns() -> None:
    assert turns_of(ticket(10, 30, 60, spread=10, arrived=5)) == [6, 9, 15]
    assert turns_of(ticket(10, 30, arrived=5)) == [5.04, 5.04]


def test_only_the_due_tokens_of_a_bulk_request_count() -> None:
    line = line_of(ticket(*[50] * 10, spread=10), batch_tokens=64)
    assert (line.tokens, due_tokens(line, at=0), len(line.bulk)) == (500, 0, 1)
    assert due_tokens(line, at=3) == 150
    for _ in range(4):
        line.take()
    assert (line.tokens, due_tokens(line, at=3), due_tokens(line, at=6)) == (300, 0, 100)  # it is ahead of its turns
    line.add(ticket(20, arrived=6))
    assert due_tokens(line, at=6) == 120


def test_bulk_texts_scheduled_for_later_do_not_join_a_batch_of_due_ones() -> None:
    large, small = ticket(*[50] * 6, spread=0.6), ticket(50, arrived=0.22)
    line = line_of(large, small, batch_tokens=500)
    line.pass_time(0.25)
    assert batches_of(line) == [[(small, 0), (large, 0), (large, 1)], [(large, place) for place in range(2, 6)]]


def test_the_line_keeps_no_reference_to_what_was_dropped_or_has_run() -> None:
    gone, run = (ticket(*[60] * 500, spread=500) for _ in range(2))
    line = line_of(gone, run, ticket(10))
    line.remove(gone)
    assert list(line.bulk) == [run]
    batches_of(line)
    assert (line.bulk, due_tokens(line, at=1000), line._shelves) == ({}, 0, {})
    line.add(ticket(500))
    for number in range(1000):
        left = ticket(20, arrived=number / 1000)
        line.add(left)
        line.remove(left)
    assert len(line._turns) <= 2 * line.num_texts + 64 + 1
    assert len(line._later) <= 2 * line.num_texts + 64


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
