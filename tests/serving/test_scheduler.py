"""The scheduler admits, runs and delivers requests, by a clock that is set by hand; its threads report their faults."""

import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clozeline.inference.open_model import Rows
from clozeline.inference.tokenization import TokenizedText
from clozeline.serving.admission import Admission, OverloadedError
from clozeline.serving.queue import Lane, MicroBatch, Ticket, turn_of
from clozeline.serving.scheduler import BatchWorkers, DeadlineError, Scheduler
from tests.make.tickets import Clock, EchoModel, ticket
from tests.serving.conftest import wait_until


class Recorded(Scheduler):
    """Scheduler with a list of the tickets that it has delivered."""

    def __init__(self, clock: Clock | None = None, **options: Any) -> None:
        self.delivered: list[Ticket] = []
        super().__init__(1, self.delivered.extend, clock=clock or Clock(), **options)


def refusal(scheduler: Scheduler, asked: Ticket, later_tokens: int = 0) -> tuple[str, int | None]:
    """Submit a request that must not be admitted; return the reason and the seconds after which to retry."""
    with pytest.raises(OverloadedError) as raised:
        scheduler.submit(asked, later_tokens=later_tokens)
    return raised.value.reason, raised.value.retry_after_seconds


def run(scheduler: Scheduler, batch: MicroBatch | None, seconds: float = 0.0) -> MicroBatch:
    assert batch
    scheduler.hand_back(batch, [(entry.position, float(entry.length)) for entry in batch.entries], seconds)
    return batch


def test_a_request_is_delivered_once_all_its_texts_have_run_in_their_own_order() -> None:
    scheduler = Recorded(batch_tokens=64)
    asked = ticket(40, 3, 60, 3)
    scheduler.submit(asked)
    while scheduler.waiting_tokens:
        assert scheduler.delivered == []
        run(scheduler, scheduler.take())
    assert scheduler.delivered == [asked]
    assert asked.answers == [(0, 40.0), (1, 3.0), (2, 60.0), (3, 3.0)]


def test_a_completion_is_refused_at_once_if_its_later_steps_would_miss_the_deadline() -> None:
    scheduler = Recorded(batch_tokens=8)
    scheduler.submit(ticket(8, 8))
    while scheduler.waiting_tokens:
        run(scheduler, scheduler.take(), seconds=1.0)  # 8 tokens per second
    assert refusal(scheduler, ticket(8, deadline=10.0), later_tokens=800) == ("never_in_time", None)
    scheduler.submit(ticket(8, deadline=10.0), later_tokens=40)


def test_a_request_is_admitted_as_a_whole_or_not_at_all() -> None:
    scheduler = Recorded(admission=Admission(max_waiting_tokens=100))
    scheduler.submit(ticket(60))
    assert refusal(scheduler, ticket(20, 20, 20))[0] == "queue_full"
    assert scheduler.waiting_tokens == 60
    scheduler.submit(ticket(40))
    with pytest.raises(OverloadedError):
        scheduler.check_open()


def test_a_cancelled_request_does_not_run_and_frees_its_place() -> None:
    scheduler = Recorded(batch_tokens=64, admission=Admission(max_waiting_tokens=200))
    left = ticket(60, 60, 60)
    scheduler.submit(left)
    running = scheduler.take()
    scheduler.give_up(left)
    assert scheduler.waiting_tokens == 0
    after = ticket(10)
    scheduler.submit(after)
    run(scheduler, running)
    run(scheduler, scheduler.take())
    assert scheduler.delivered == [after]


def test_a_request_past_its_deadline_fails_without_running() -> None:
    clock = Clock()
    scheduler = Recorded(clock)
    late, in_time = ticket(10, 500, deadline=5), ticket(10, deadline=50)
    scheduler.submit(late)
    scheduler.submit(in_time)
    clock.seconds = 6
    batch = run(scheduler, scheduler.take())
    assert [entry.ticket for entry in batch.entries] == [in_time]
    assert scheduler.delivered == [late, in_time]
    assert isinstance(late.error, DeadlineError)
    assert (in_time.started_seconds, scheduler.waiting_tokens) == (6, 0)


def test_a_failing_text_fails_only_its_own_request_and_only_once() -> None:
    scheduler = Recorded(batch_tokens=64)
    bad, good = ticket(30, 60, 60), ticket(30)
    scheduler.submit(bad)
    scheduler.submit(good)
    batch, second = scheduler.take(), scheduler.take()
    assert batch
    assert second
    fault = RuntimeError("of the graph")
    scheduler.hand_back(batch, [fault if entry.ticket is bad else "fine" for entry in batch.entries], 0)
    scheduler.hand_back(second, [fault for _ in second.entries], 0)
    while scheduler.waiting_tokens:
        run(scheduler, scheduler.take())
    assert sorted(map(id, scheduler.delivered)) == sorted([id(bad), id(good)])
    assert bad.error is fault
    assert good.error is None


def test_a_closed_scheduler_finishes_its_queue_and_ends() -> None:
    scheduler = Recorded()
    scheduler.submit(ticket(10))
    scheduler.close()
    run(scheduler, scheduler.take())
    assert scheduler.take() is None


class NeverWaits(threading.Condition):
    """Condition of a single worker, which nothing would wake: waiting fails the test."""

    def wait(self, timeout: float | None = None) -> bool:
        pytest.fail("all that waited was too late")


class Simulated:
    """One worker that runs 500 tokens per second; 1,000 tokens or 2 s of work may wait."""

    def __init__(self) -> None:
        self.clock = Clock()
        admission = Admission(max_waiting_tokens=1000, max_wait_seconds=2)
        self.scheduler = Recorded(self.clock, batch_tokens=64, admission=admission)
        self.scheduler._changed = NeverWaits()
        self.ended_seconds: dict[Ticket, float] = {}
        self.submit(2, patience=60)
        self.run_until(10)

    def submit(self, num_texts: int, patience: float) -> Ticket:
        now = self.clock.seconds
        asked = ticket(*[32] * num_texts, arrived=now, deadline=now + patience)
        self.scheduler.submit(asked)
        return asked

    def run_until(self, seconds: float) -> None:
        """Run micro-batches until `seconds`, then set the clock to that time."""
        while self.scheduler.waiting_tokens and self.clock.seconds < seconds:
            batch = self.scheduler.take()
            assert batch
            took = batch.padded_tokens / 500
            self.clock.seconds += took
            run(self.scheduler, batch, took)
            for ended in self.scheduler.delivered:
                self.ended_seconds.setdefault(ended, self.clock.seconds)
        self.clock.seconds = max(seconds, self.clock.seconds)


gaps = st.floats(0, 1)  # seconds since the last request
floods = st.lists(
    st.one_of(
        # texts and seconds until the deadline; a bulk request has at least 5 s, so that 2.5 s are left after its turns
        st.tuples(gaps, st.integers(1, 15), st.sampled_from([3, 10, 30])),
        st.tuples(gaps, st.one_of(st.integers(16, 20), st.integers(100, 1000)), st.sampled_from([5, 10, 30])),
    ),
    max_size=60,
)


@settings(deadline=None)  # an example takes long on a busy machine, whose clock is not that of the test
@given(floods)
def test_admitted_requests_are_answered_within_their_bound_and_before_their_deadline(
    requests: list[tuple[float, int, float]],
) -> None:
    simulated = Simulated()
    admitted: list[Ticket] = []
    for gap, num_texts, patience in requests:
        simulated.run_until(simulated.clock.seconds + gap)
        with suppress(OverloadedError):
            admitted.append(simulated.submit(num_texts, patience))
    simulated.run_until(simulated.clock.seconds + 100)
    for asked in admitted:
        micro_batches = 2 * 64 / 500  # the one that ran on arrival, and the one of its last text
        bound = asked.deadline_seconds if asked.spread_seconds else turn_of(asked) + 2
        assert asked.error is None
        assert simulated.ended_seconds[asked] <= bound + micro_batches


def test_small_requests_wait_at_most_two_micro_batches_during_a_bulk_request() -> None:
    simulated = Simulated()
    large = simulated.submit(280, patience=30)  # 18 s of work
    for _ in range(40):
        small = simulated.submit(1, patience=30)
        simulated.run_until(simulated.clock.seconds + 0.4)
        assert simulated.ended_seconds[small] - small.arrived_seconds <= 2 * 64 / 500
    simulated.run_until(60)
    assert simulated.ended_seconds[large] < large.deadline_seconds


class Held(EchoModel):
    """Model whose runs last until `may_end` is set."""

    may_end = threading.Event()

    def rows(self, texts: Sequence[TokenizedText], output: str) -> list[Rows]:
        assert self.may_end.wait(timeout=120)
        return super().rows(texts, output)


def test_a_stalled_worker_is_reported_until_it_returns() -> None:
    clock, held = Clock(), Held()
    scheduler = Recorded(clock)
    workers = BatchWorkers(scheduler, 1, lambda batch, seconds: None)
    scheduler.submit(ticket(5, lane=Lane(held, "logits")))
    wait_until(lambda: workers.num_running == 1)
    clock.seconds = 120
    assert workers.fault(120) is None
    clock.seconds = 121
    assert workers.fault(120) == "clozeline-worker-0: in one micro-batch for more than 120 s"
    held.may_end.set()
    wait_until(lambda: workers.num_running == 0)
    assert workers.fault(120) is None
    workers.close()
    assert workers.fault(120) is None  # closed workers are not a fault


def test_the_pace_of_one_model_does_not_affect_another() -> None:
    scheduler, (slow, fast) = Recorded(batch_tokens=64), (Lane(EchoModel(), "logits") for _ in range(2))
    for lane, seconds in ((fast, 0.1), (slow, 10.0)):
        scheduler.submit(ticket(64, lane=lane))
        run(scheduler, scheduler.take(), seconds)
    assert refusal(scheduler, ticket(64, deadline=5, lane=slow)) == ("never_in_time", None)
    scheduler.submit(ticket(64, deadline=5, lane=fast))


def test_texts_of_multi_step_requests_are_not_spread_until_the_deadline() -> None:
    for later_tokens, is_spread in ((0, True), (1, False)):
        scheduler = Recorded(admission=Admission(max_waiting_tokens=1_000), batch_tokens=64)
        asked = ticket(*[40] * 20, deadline=60.0)
        scheduler.submit(asked, later_tokens=later_tokens)
        assert (asked.spread_seconds > 0) == is_spread
