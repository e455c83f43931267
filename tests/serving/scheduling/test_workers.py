"""Faults of the threads that run models, as the health routes see them."""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from clozeline.serving.queue import BatchWorkers, Lane, Scheduler, Ticket
from tests.serving.conftest import wait_until

Make = Callable[..., Ticket]


class Held:
    """Model whose runs last until `may_end` is set."""

    def __init__(self) -> None:
        self.may_end = threading.Event()

    def rows(self, texts: Any, output: str) -> list[Any]:
        assert self.may_end.wait(timeout=120)
        return [np.zeros(1, dtype=np.float32) for _ in texts]


@pytest.fixture
def held() -> Iterator[Held]:
    model = Held()
    yield model
    model.may_end.set()


def test_a_stalled_worker_is_reported_until_it_returns(ticket: Make, clock: Any, held: Held) -> None:
    scheduler = Scheduler(1, lambda tickets: None, clock=clock)
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
