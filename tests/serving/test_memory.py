"""Memory stays where it is, whatever lengths and numbers of texts come."""

import os
import random
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from clozeline.inference.encoder import Encoder
from clozeline.serving.catalogue import Catalogue
from clozeline.serving.metrics import Metrics
from clozeline.serving.scheduling.scheduler import Scheduler
from clozeline.serving.scheduling.work import Lane, Ticket
from clozeline.serving.scheduling.workers import Workers


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.slow
def test_memory_stays_where_it_was_after_ten_thousand_random_requests(catalogue: Catalogue) -> None:
    served = catalogue.encoder(None)
    assert isinstance(served.model, Encoder)
    random.seed(0)
    room = threading.Semaphore(64)

    def settled(tickets: Sequence[Ticket]) -> None:
        assert all(ticket.error is None for ticket in tickets)
        for _ in tickets:
            room.release()

    scheduler = Scheduler(1, settled)
    metrics = Metrics(1, lambda: scheduler.waiting_tokens)
    workers = Workers(scheduler, 1, metrics.ran)
    kinds = [served.model.embedding(["a " * n for n in lengths]) for lengths in random_lengths(300)]
    for number in range(10_000):
        if number == 1_000:
            before = resident_bytes()
        room.acquire()
        question = random.choice(kinds)
        scheduler.submit(Ticket(Lane(served.model, question.output), question, scheduler.clock()))
    workers.close()
    assert workers.fault(60) is None
    assert resident_bytes() - before < 4 * 2**20, "more than 450 bytes of each request are kept"


def random_lengths(num: int) -> list[list[int]]:
    return [[random.randint(1, 60) for _ in range(random.choice([1, 1, 1, 2, 8]))] for _ in range(num)]
