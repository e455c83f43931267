"""The way from a handler to the workers and back: tokenize, submit, and wait until the deadline.

Short requests are tokenized in the event loop, long ones in a thread with a bounded queue. A handler waits for another
thread only as long as its client waits.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, Literal, TypeVar

from starlette.requests import Request

from clozeline.inference.open_model import AnyQuestion, Question
from clozeline.serving.admission import OverloadedError
from clozeline.serving.errors import ApiError, not_ready, problem
from clozeline.serving.loading import LoadedModel
from clozeline.serving.metrics import Metrics
from clozeline.serving.queue import Lane, Ticket
from clozeline.serving.scheduler import DeadlineError, Scheduler
from clozeline.serving.tracing import Moments, Tracing

Made = TypeVar("Made")
Wait = Callable[["asyncio.Future[Any]"], Awaitable[None]]
"""Returns once the future is done; raises if its request ends before."""
_INLINE_CHARACTERS = 4_096
"""Requests up to this length are tokenized in the event loop: a thread would cost more. Longer ones would block it."""
_MAX_WAITING_CHARACTERS = 8 * 2**20
_WATCH_AFTER_SECONDS = 0.02
"""Time after which the server begins to watch whether the client leaves."""
Outcome = Literal["done", "late", "left", "stopped"]
Answer = TypeVar("Answer")
ARRIVED = "clozeline.arrived"
"""Key of a scope: `time.monotonic` when the whole request was read. The handler may start later."""
_TURN_CHARACTERS = 256
"""One turn of a text costs about as much as tokenizing so many characters."""
TIMES = ("x-tokenization-time", "x-queue-time", "x-inference-time", "x-total-time")
"""Headers with the time of each phase of a request in milliseconds; the last is the total."""


def overloaded(refusal: OverloadedError) -> ApiError:
    """Return the error for a request that was not admitted: 429, or 413 if a retry cannot help."""
    if refusal.retry_after_seconds is None:
        return problem(
            413,
            "too_much_work",
            "the server cannot finish this request before its deadline",
            given=refusal.given,
            expected=refusal.expected,
            do="send the texts in several requests, or set a larger x-timeout-ms",
        )
    return problem(
        429,
        "overloaded",
        "the server is overloaded",
        given=refusal.given,
        expected=refusal.expected,
        do="wait for the time in Retry-After, then send the request again",
        headers={"retry-after": str(refusal.retry_after_seconds), "x-should-retry": "true"},
    )


def deadline_passed(waited_seconds: float) -> ApiError:
    return problem(
        504,
        "deadline_passed",
        "the deadline of the request passed before its answer",
        given=f"{1000 * waited_seconds:,.0f} ms since the request arrived",
        expected="an answer before the deadline",
        do="send fewer texts, or set a larger x-timeout-ms",
    )


def client_left() -> ApiError:
    return problem(
        499,
        "client_left",
        "the client closed the connection before the answer",
        given="a closed connection",
        expected="a client that waits",
        do="nothing: the server dropped the request",
    )


class TokenizerThread:
    """A single thread tokenizes, because the cores belong to the workers."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="clozeline-tokenizer")
        self._waiting_characters = 0

    async def made(
        self, work: Callable[[], Made], num_characters: int, wait: Wait, *, is_admitted: bool = False
    ) -> Made:
        """Return the result of `work` on this number of characters. If `wait` raises before `work` begins, it never
        runs.

        Raises:
            OverloadedError: too much waits, and the request is not admitted yet.
        """
        if num_characters <= _INLINE_CHARACTERS:
            return work()
        if self._waiting_characters > _MAX_WAITING_CHARACTERS and not is_admitted:
            raise OverloadedError(
                "tokenizer_full",
                given=f"{self._waiting_characters:,} characters before this request",
                expected=f"at most {_MAX_WAITING_CHARACTERS:,} characters that wait to be tokenized",
                retry_seconds=1,
            )
        self._waiting_characters += num_characters
        making = asyncio.get_running_loop().run_in_executor(self._thread, work)
        try:
            await wait(making)
            return making.result()
        finally:
            making.cancel()
            self._waiting_characters -= num_characters

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)


async def outcome(
    awaited: "asyncio.Future[Any]", request: Request, timeout_seconds: float, stopped: "asyncio.Future[None]"
) -> Outcome:
    """Wait for `awaited` and return how the wait ended. `awaited` is never cancelled.

    The wait also ends once `stopped` is done.
    """
    until_seconds = asyncio.get_running_loop().time() + timeout_seconds
    done, _ = await asyncio.wait({awaited}, timeout=max(0.0, min(_WATCH_AFTER_SECONDS, timeout_seconds)))
    if done:
        return "done"
    leaving = asyncio.ensure_future(_leaves(request))
    try:
        left_seconds = max(0.0, until_seconds - asyncio.get_running_loop().time())
        await asyncio.wait({awaited, leaving, stopped}, timeout=left_seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        leaving.cancel()
    if awaited.done():
        return "done"
    if stopped.done():
        return "stopped"
    return "left" if leaving.done() and not leaving.cancelled() else "late"


async def _leaves(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


@dataclass(frozen=True, slots=True)
class Patience:
    """Arrival and deadline of a request, on the scheduler's clock."""

    request: Request
    arrived_seconds: float
    deadline_seconds: float


@dataclass(frozen=True, slots=True)
class Reply(Generic[Answer]):
    """Answers to the texts of a question, and headers for the response that name the model and the times."""

    answers: list[Answer]
    headers: dict[str, str]
    """Headers for the whole request."""
    tokens: int
    """Number of tokens of all texts, including special tokens."""
    patience: Patience


@dataclass(frozen=True, slots=True)
class Turns(Generic[Answer]):
    """Questions of which each follows from the answers to the one before."""

    first: Callable[[], Question[Answer]]
    then: Callable[[list[Answer]], Question[Answer] | None]
    """Returns the question that follows from these answers; None: none follows."""
    later_tokens: Callable[[], int]
    """Returns the largest possible number of tokens in all questions after the first, once that is made."""


@dataclass(eq=False, slots=True)
class _Asked(Ticket):
    settled: "asyncio.Future[None]" = field(kw_only=True)


def deliver(tickets: Sequence[Ticket]) -> None:
    """Wake the handlers of `tickets`, which share one event loop."""
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
    """Passes every request for a model to the scheduler and waits for the answers."""

    def __init__(self, scheduler: Scheduler, metrics: Metrics, tracing: Tracing, timeout_seconds: float) -> None:
        self._scheduler = scheduler
        self._metrics = metrics
        self._tracing = tracing
        self._timeout_seconds = timeout_seconds
        self._tokenizer = TokenizerThread()
        self._stopped: asyncio.Future[None] | None = None
        self.last_deadline_seconds = 0.0
        """Latest deadline of the requests so far, on the scheduler's clock."""

    async def ask_together(
        self,
        request: Request,
        served: LoadedModel,
        texts: Sequence[str],
        questions: Callable[[], Sequence[AnyQuestion]],
        timeout_milliseconds: int | None = None,
    ) -> list[Reply[Any]]:
        """Return the answers of `served` to each question about `texts`: all questions are admitted, or none.

        Raises:
            ApiError: 429, too much waits; 413, the work does not fit before the deadline; 504, the deadline passed;
                499, the client left; 503, the server stops now. The waiting texts of the request do not run.
            ClozelineError: tokenization refuses a text.
        """
        patience = self.patience(request, timeout_milliseconds)
        tickets = await self._admitted(served, texts, questions, patience)
        await self._all_settled(tickets, patience)
        headers = served.identity.headers | self._times(served, tickets, patience)
        return [Reply(ticket.answers, headers, ticket.tokens, patience) for ticket in tickets]

    async def ask_in_turn(
        self,
        request: Request,
        served: LoadedModel,
        texts: Sequence[str],
        turns: Turns[Answer],
        timeout_milliseconds: int | None = None,
    ) -> Reply[Answer]:
        """Return the answers to the last of several questions, each of which follows from the answers before.

        They are admitted together, have the deadline of the request, and share the runs of the graph with other
        requests. Raises what `ask_together` raises.
        """
        patience = self.patience(request, timeout_milliseconds)
        tickets = await self._admitted(served, texts, lambda: [turns.first()], patience, turns.later_tokens)
        await self._all_settled(tickets, patience)
        num_characters = _TURN_CHARACTERS * len(texts)
        wait = partial(self._in_time, patience=patience)
        while True:
            work = partial(turns.then, tickets[-1].answers)
            question = await self._tokenizer.made(work, num_characters, wait, is_admitted=True)
            if question is None:
                break
            tickets.append(self._ticket(served, question, patience))
            self._scheduler.follow(tickets[-1])
            await self._all_settled(tickets[-1:], patience)
        headers = served.identity.headers | self._times(served, tickets, patience)
        return Reply(tickets[-1].answers, headers, sum(ticket.tokens for ticket in tickets), patience)

    async def _admitted(
        self,
        served: LoadedModel,
        texts: Sequence[str],
        questions: Callable[[], Sequence[AnyQuestion]],
        patience: Patience,
        later_tokens: Callable[[], int] = int,
    ) -> "list[_Asked]":
        """Return the tickets of the questions, which the scheduler has taken."""
        try:
            self._scheduler.check_open()
            asked = await self._made(questions, sum(map(len, texts)), patience)
            tickets = [self._ticket(served, question, patience) for question in asked]
            self._scheduler.submit(*tickets, later_tokens=later_tokens())
        except OverloadedError as error:
            raise self._overloaded(error) from error
        texts_read = [text for question in asked for text in question.texts]
        self._metrics.admitted(
            served.identity.name,
            [len(text) for text in texts_read],
            sum(map(served.model.count_unknown, texts_read)),
            tickets[0].arrived_seconds - patience.arrived_seconds,
        )
        return tickets

    async def _all_settled(self, tickets: "Sequence[_Asked]", patience: Patience) -> None:
        try:
            for ticket in tickets:
                await self._settled(ticket, patience)
        finally:
            for ticket in tickets:
                self._scheduler.give_up(ticket)  # changes nothing if it is settled

    async def finished(self, reply: Reply[Any], work: Callable[[], Made], num_characters: int) -> Made:
        """Return the result of `work` on the answers to this number of characters, without blocking other requests.

        The models have run, so the request can no longer be refused. Its deadline still applies.

        Raises:
            ApiError: 504, the deadline passed; 499, the client left; 503, the server stops now.
        """
        wait = partial(self._in_time, patience=reply.patience)
        return await self._tokenizer.made(work, num_characters, wait, is_admitted=True)

    async def tokenizing(self, request: Request, work: Callable[[], Made], num_characters: int) -> Made:
        """Return the result of `work` on this number of characters, without blocking other requests.

        Raises:
            ApiError: 429, too much waits; 504, the deadline passed; 499, the client left; 503, the server stops now.
        """
        try:
            return await self._made(work, num_characters, self.patience(request, None))
        except OverloadedError as error:
            raise self._overloaded(error) from error

    def stop(self) -> None:
        """End every request at once with 503. Call it in the event loop."""
        stopped = self._stopping()
        if not stopped.done():
            stopped.set_result(None)

    def close(self) -> None:
        self._tokenizer.close()

    def patience(self, request: Request, timeout_milliseconds: int | None) -> Patience:
        """Return the arrival and the deadline of a request; a stopping server waits for the deadline."""
        timeout_seconds = timeout_milliseconds / 1000 if timeout_milliseconds else self._timeout_seconds
        arrived_seconds: float = request.scope.get(ARRIVED, self._scheduler.clock())
        self.last_deadline_seconds = max(self.last_deadline_seconds, arrived_seconds + timeout_seconds)
        return Patience(request, arrived_seconds, arrived_seconds + timeout_seconds)

    def _stopping(self) -> "asyncio.Future[None]":
        """Return the future that `stop` completes, shared by all requests of the event loop."""
        if self._stopped is None:
            self._stopped = asyncio.get_running_loop().create_future()
        return self._stopped

    def _ticket(self, served: LoadedModel, asked: AnyQuestion, patience: Patience) -> "_Asked":
        settled = asyncio.get_running_loop().create_future()
        lane = Lane(served.model, asked.output)
        return _Asked(lane, asked, self._scheduler.clock(), patience.deadline_seconds, settled=settled)

    async def _made(self, work: Callable[[], Made], num_characters: int, patience: Patience) -> Made:
        return await self._tokenizer.made(work, num_characters, lambda making: self._in_time(making, patience))

    async def _settled(self, ticket: _Asked, patience: Patience) -> None:
        """Wait until `ticket` is settled. Raises its error, or what `_in_time` raises."""
        await self._in_time(ticket.settled, patience)
        if isinstance(ticket.error, DeadlineError):
            raise self._late(patience)
        if ticket.error:
            self._metrics.rejected("failed")
            raise ticket.error

    async def _in_time(self, awaited: "asyncio.Future[Any]", patience: Patience) -> None:
        """Wait until `awaited` is done.

        Raises:
            ApiError: 504, the deadline passed before; 499, the client left; 503, the server stops now.
        """
        left_seconds = patience.deadline_seconds - self._scheduler.clock()
        ended = await outcome(awaited, patience.request, left_seconds, self._stopping())
        if ended == "left":
            self._metrics.rejected("dropped")
            raise client_left()
        if ended == "stopped":
            self._metrics.rejected("stopped")
            raise not_ready("stopping", hang_up=True)
        if ended == "late":
            raise self._late(patience)

    def _late(self, patience: Patience) -> Exception:
        self._metrics.rejected("deadline")
        return deadline_passed(self._scheduler.clock() - patience.arrived_seconds)

    def _overloaded(self, error: OverloadedError) -> Exception:
        self._metrics.rejected(error.reason)
        return overloaded(error)

    def _times(self, served: LoadedModel, tickets: Sequence[_Asked], patience: Patience) -> dict[str, str]:
        now_seconds = self._scheduler.clock()
        submitted_seconds = tickets[0].arrived_seconds
        started_seconds = min(ticket.started_seconds for ticket in tickets if ticket.started_seconds is not None)
        queue_seconds, inference_seconds = started_seconds - submitted_seconds, now_seconds - started_seconds
        self._metrics.answered(served.identity.name, queue_seconds, inference_seconds)
        moments = Moments(patience.arrived_seconds, submitted_seconds, started_seconds, now_seconds)
        tokens = sum(ticket.tokens for ticket in tickets)
        self._tracing.answered(served.identity, moments, sum(len(ticket.entries) for ticket in tickets), tokens)
        spent_seconds = (
            submitted_seconds - patience.arrived_seconds,
            queue_seconds,
            inference_seconds,
            now_seconds - patience.arrived_seconds,
        )
        return {
            "x-compute-tokens": str(tokens),
            **{name: f"{1000 * seconds:.2f}" for name, seconds in zip(TIMES, spent_seconds, strict=True)},
        }
