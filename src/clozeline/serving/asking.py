"""From a handler to the workers and back: tokenize, be admitted, wait, and stop waiting in time."""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from fastapi import Request

from clozeline.inference.open_model import OpenModel
from clozeline.inference.question import Question
from clozeline.serving.catalogue import ServedModel
from clozeline.serving.metrics import Metrics
from clozeline.serving.refusals import client_left, deadline_passed, overloaded
from clozeline.serving.scheduling.admission import Refusal
from clozeline.serving.scheduling.scheduler import DeadlineError, OverloadedError, Scheduler
from clozeline.serving.scheduling.work import Lane, Ticket

Answer = TypeVar("Answer")
Made = TypeVar("Made")

_INLINE_CHARACTERS = 4_096
"""Shorter requests are tokenized where they arrive: a thread would cost more. Longer ones would hold up the others."""
_MAX_TOKENIZING_CHARACTERS = 8 * 2**20
_WATCH_AFTER_SECONDS = 0.02
"""Only of a request that takes longer is it watched whether its client has left."""


@dataclass(frozen=True, slots=True)
class Reply(Generic[Answer]):
    """The answers to the texts of a request, and what its response says of the model and the time."""

    answers: list[Answer]
    headers: dict[str, str]
    tokens: int
    """Of all texts, special tokens among them."""


@dataclass(eq=False, slots=True)
class _Asked(Ticket):
    settled: "asyncio.Future[None]" = field(kw_only=True)


def deliver(tickets: Sequence[Ticket]) -> None:
    """Wake the handlers of `tickets`, all of one event loop."""
    first = tickets[0]
    assert isinstance(first, _Asked)
    loop = first.settled.get_loop()
    if not loop.is_closed():
        loop.call_soon_threadsafe(_wake, tickets)


def _wake(tickets: Sequence[Ticket]) -> None:
    for ticket in tickets:
        assert isinstance(ticket, _Asked)
        if not ticket.settled.done():
            ticket.settled.set_result(None)


class Asking:
    """The way of every request that a model answers."""

    def __init__(self, scheduler: Scheduler, metrics: Metrics, timeout_seconds: float) -> None:
        self._scheduler = scheduler
        self._metrics = metrics
        self._timeout_seconds = timeout_seconds
        self._tokenizer_thread = ThreadPoolExecutor(1, thread_name_prefix="clozeline-tokenizer")
        self._tokenizing_characters = 0

    async def ask(
        self,
        request: Request,
        served: ServedModel[OpenModel],
        texts: Sequence[str],
        question: Callable[[], Question[Answer]],
        timeout_milliseconds: int | None = None,
    ) -> Reply[Answer]:
        """What `served` answers to the question about `texts`, once it is tokenized.

        Raises:
            ApiError: 429, too much waits; 504, its deadline passed; 499, its client left. Nothing more of it runs.
            ClozelineError: what tokenization says of a text.
        """
        arrived_seconds = self._scheduler.clock()
        timeout_seconds = timeout_milliseconds / 1000 if timeout_milliseconds else self._timeout_seconds
        try:
            self._scheduler.check_open()
            asked = await self._worked(question, sum(map(len, texts)))
            ticket = self._ticket(served, asked, arrived_seconds + timeout_seconds)
            self._scheduler.submit(ticket)
        except OverloadedError as error:
            self._metrics.rejected(error.refusal.reason)
            raise overloaded(error.refusal) from error
        self._metrics.admitted(served, asked, ticket.arrived_seconds - arrived_seconds)
        await self._settled(ticket, request)
        headers = served.identity.headers | self._times(served, ticket, arrived_seconds)
        return Reply(ticket.answers, headers, ticket.tokens)

    async def tokenizing(self, work: Callable[[], Made], num_characters: int) -> Made:
        """What `work` makes of so many characters, where it does not hold up other requests.

        Raises:
            ApiError: 429, too much waits.
        """
        try:
            return await self._worked(work, num_characters)
        except OverloadedError as error:
            self._metrics.rejected(error.refusal.reason)
            raise overloaded(error.refusal) from error

    def close(self) -> None:
        self._tokenizer_thread.shutdown(wait=False, cancel_futures=True)

    def _ticket(self, served: ServedModel[OpenModel], asked: Question[object], deadline_seconds: float) -> "_Asked":
        settled = asyncio.get_running_loop().create_future()
        lane = Lane(served.model, asked.output)
        return _Asked(lane, asked, self._scheduler.clock(), deadline_seconds, settled=settled)

    async def _worked(self, work: Callable[[], Made], num_characters: int) -> Made:
        if num_characters <= _INLINE_CHARACTERS:
            return work()
        if self._tokenizing_characters > _MAX_TOKENIZING_CHARACTERS:
            raise OverloadedError(
                Refusal(
                    "tokenizer_full",
                    given=f"{self._tokenizing_characters:,} characters before this request",
                    expected=f"at most {_MAX_TOKENIZING_CHARACTERS:,} characters that wait to be tokenized",
                    retry_after_seconds=1,
                )
            )
        self._tokenizing_characters += num_characters
        try:
            return await asyncio.get_running_loop().run_in_executor(self._tokenizer_thread, work)
        finally:
            self._tokenizing_characters -= num_characters

    async def _settled(self, ticket: _Asked, request: Request) -> None:
        """Wait until `ticket` is settled, its deadline has passed, or nobody waits for it any more."""
        try:
            left = await self._wait(ticket, request)
        finally:
            self._scheduler.give_up(ticket)  # changes nothing if it is settled
        if left:
            self._metrics.rejected("dropped")
            raise client_left()
        if not ticket.settled.done() or isinstance(ticket.error, DeadlineError):
            self._metrics.rejected("deadline")
            raise deadline_passed(self._scheduler.clock() - ticket.arrived_seconds)
        if ticket.error:
            self._metrics.rejected("failed")
            raise ticket.error

    async def _wait(self, ticket: _Asked, request: Request) -> bool:
        """Whether the client has left before `ticket` was settled."""

        def seconds_left() -> float:
            return max(0.0, ticket.deadline_seconds - self._scheduler.clock())

        done, _ = await asyncio.wait({ticket.settled}, timeout=min(_WATCH_AFTER_SECONDS, seconds_left()))
        if done:
            return False
        leaving = asyncio.ensure_future(_leaves(request))
        try:
            await asyncio.wait({ticket.settled, leaving}, timeout=seconds_left(), return_when=asyncio.FIRST_COMPLETED)
        finally:
            leaving.cancel()
        return leaving.done() and not leaving.cancelled() and not ticket.settled.done()

    def _times(self, served: ServedModel[OpenModel], ticket: _Asked, arrived_seconds: float) -> dict[str, str]:
        now_seconds = self._scheduler.clock()
        assert ticket.started_seconds is not None
        queue_seconds = ticket.started_seconds - ticket.arrived_seconds
        inference_seconds = now_seconds - ticket.started_seconds
        self._metrics.answered(served.identity.name, queue_seconds, inference_seconds)
        return {
            "x-compute-tokens": str(ticket.tokens),
            "x-tokenization-time": _milliseconds(ticket.arrived_seconds - arrived_seconds),
            "x-queue-time": _milliseconds(queue_seconds),
            "x-inference-time": _milliseconds(inference_seconds),
            "x-total-time": _milliseconds(now_seconds - arrived_seconds),
        }


async def _leaves(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _milliseconds(seconds: float) -> str:
    return f"{1000 * seconds:.2f}"
