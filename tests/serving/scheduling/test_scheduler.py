"""The scheduler with a clock that is set by hand, and no thread."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from clozeline.serving.scheduling.admission import Admission
from clozeline.serving.scheduling.scheduler import DeadlineError, OverloadedError, Scheduler
from clozeline.serving.scheduling.work import MicroBatch, Ticket

Make = Callable[..., Ticket]


class Recorded:
    """A scheduler and the tickets that it has delivered."""

    def __init__(self, clock: Any, **options: Any) -> None:
        self.delivered: list[Ticket] = []
        self.scheduler = Scheduler(1, self.note, clock=clock, **options)

    def note(self, tickets: Sequence[Ticket]) -> None:
        self.delivered += tickets


def run(scheduler: Scheduler, batch: MicroBatch | None, seconds: float = 0.0) -> MicroBatch:
    assert batch
    scheduler.hand_back(batch, [(entry.position, float(entry.length)) for entry in batch.entries], seconds)
    return batch


def test_a_request_is_delivered_once_all_its_texts_have_run_in_their_own_order(ticket: Make, clock: Any) -> None:
    recorded = Recorded(clock, batch_tokens=64)
    asked = ticket(40, 3, 60, 3)
    recorded.scheduler.submit(asked)
    while recorded.scheduler.waiting_tokens:
        assert recorded.delivered == []
        run(recorded.scheduler, recorded.scheduler.take())
    assert recorded.delivered == [asked]
    assert asked.answers == [(0, 40.0), (1, 3.0), (2, 60.0), (3, 3.0)]


def test_a_request_is_admitted_as_a_whole_or_not_at_all(ticket: Make, clock: Any) -> None:
    recorded = Recorded(clock, admission=Admission(max_waiting_tokens=100))
    recorded.scheduler.submit(ticket(60))
    with pytest.raises(OverloadedError) as raised:
        recorded.scheduler.submit(ticket(20, 20, 20))
    assert raised.value.refusal.reason == "queue_full"
    assert recorded.scheduler.waiting_tokens == 60
    recorded.scheduler.submit(ticket(40))
    with pytest.raises(OverloadedError):
        recorded.scheduler.check_open()


def test_a_request_that_was_given_up_does_not_run_and_makes_room(ticket: Make, clock: Any) -> None:
    recorded = Recorded(clock, batch_tokens=64, admission=Admission(max_waiting_tokens=200))
    left = ticket(60, 60, 60)
    recorded.scheduler.submit(left)
    running = recorded.scheduler.take()
    recorded.scheduler.give_up(left)
    assert recorded.scheduler.waiting_tokens == 0
    after = ticket(10)
    recorded.scheduler.submit(after)
    run(recorded.scheduler, running)
    run(recorded.scheduler, recorded.scheduler.take())
    assert recorded.delivered == [after]


def test_what_is_too_late_is_not_run_but_told(ticket: Make, clock: Any) -> None:
    recorded = Recorded(clock)
    late, in_time = ticket(10, 500, deadline=5), ticket(10, deadline=50)
    recorded.scheduler.submit(late)
    recorded.scheduler.submit(in_time)
    clock.seconds = 6
    batch = run(recorded.scheduler, recorded.scheduler.take())
    assert [entry.ticket for entry in batch.entries] == [in_time]
    assert recorded.delivered == [late, in_time]
    assert isinstance(late.error, DeadlineError)
    assert recorded.scheduler.waiting_tokens == 0


def test_a_text_that_fails_fails_its_own_request_only_and_once(ticket: Make, clock: Any) -> None:
    recorded = Recorded(clock, batch_tokens=64)
    bad, good = ticket(30, 60, 60), ticket(30)
    recorded.scheduler.submit(bad)
    recorded.scheduler.submit(good)
    batch = recorded.scheduler.take()
    second = recorded.scheduler.take()
    assert batch
    assert second
    fault = RuntimeError("of the graph")
    answers = [fault if entry.ticket is bad else "fine" for entry in batch.entries]
    recorded.scheduler.hand_back(batch, answers, 0)
    recorded.scheduler.hand_back(second, [fault for _ in second.entries], 0)
    while recorded.scheduler.waiting_tokens:
        run(recorded.scheduler, recorded.scheduler.take())
    assert sorted(map(id, recorded.delivered)) == sorted([id(bad), id(good)])
    assert bad.error is fault
    assert good.error is None


def test_how_long_a_request_waited_is_known(ticket: Make, clock: Any) -> None:
    recorded = Recorded(clock)
    asked = ticket(10, arrived=0)
    recorded.scheduler.submit(asked)
    clock.seconds = 3
    run(recorded.scheduler, recorded.scheduler.take())
    assert asked.started_seconds == 3


def test_once_it_is_closed_the_rest_runs_and_then_nothing(ticket: Make, clock: Any) -> None:
    recorded = Recorded(clock)
    recorded.scheduler.submit(ticket(10))
    recorded.scheduler.close()
    run(recorded.scheduler, recorded.scheduler.take())
    assert recorded.scheduler.take() is None
