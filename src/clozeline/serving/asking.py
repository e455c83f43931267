"""The way from a handler to the workers and back: tokenize, submit, and wait until the deadline.

Short requests are tokenized in the event loop, long ones in a thread with a bounded queue. A handler waits for another
thread only as long as its client waits.
"""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, TypeVar

from starlette.requests import Request

from clozeline.inference.open_model import AnyQuestion, Concluded, Dialogue, Round, advanced
from clozeline.serving import admission, errors, loading, queue
from clozeline.serving.metrics import Metrics
from clozeline.serving.scheduler import DeadlineError, Scheduler
from clozeline.serving.tracing import Moments, Tracing

Made = TypeVar("Made")
# Requests up to this length are tokenized in the event loop: a thread would cost more. Longer ones would block it.
_INLINE_CHARACTERS = 4_096
_MAX_WAITING_CHARACTERS = 8 * 2**20
# Time after which the server begins to watch whether the client leaves.
_WATCH_AFTER_SECONDS = 0.02
Answer = TypeVar("Answer")
# Key of a scope: `time.monotonic` when the whole request was read. The handler may start later.
ARRIVED = "clozeline.arrived"
# Limit for the texts in one answer: 100 KB of masks with 100 candidates each would make gigabytes.
_MAX_ANSWER_CHARACTERS = 16 * 2**20
# Headers with the time of each phase of a request, and their meanings.
TIMES = {
    "x-tokenization-time": "Milliseconds until the texts were tokenized",
    "x-queue-time": "Milliseconds from then until the first text ran",
    "x-inference-time": "Milliseconds from then until the last answer",
    "x-total-time": "Milliseconds of the three together",
}


def overloaded(refusal: admission.OverloadedError) -> errors.ApiError:
    """Return the error for a request that was not admitted: 429, or 413 if a retry cannot help."""
    if refusal.retry_after_seconds is None:
        return errors.refused("too_much_work", given=refusal.given, expected=refusal.expected)
    return errors.problem(
        429,
        "overloaded",
        "the server is overloaded",
        given=refusal.given,
        expected=refusal.expected,
        do="wait for the time in Retry-After, then send the request again",
        headers={"retry-after": str(refusal.retry_after_seconds), "x-should-retry": "true"},
    )


def _check_answer_size(questions: Sequence[AnyQuestion]) -> None:
    num_characters = sum(question.most_characters for question in questions)
    if num_characters > _MAX_ANSWER_CHARACTERS:
        raise errors.refused(
            "answer_too_large",
            given=f"up to {num_characters:,} characters, because the answers repeat parts of the texts",
            expected=f"at most {_MAX_ANSWER_CHARACTERS:,} characters",
            param="parameters.top_k",
        )


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
    """The result of a dialogue, and headers for the response that name the model and the times."""

    answers: Answer
    headers: dict[str, str]
    tokens: int  # number of tokens of all texts, including special tokens


@dataclass(eq=False, slots=True)
class _Asked(queue.Ticket):
    settled: "asyncio.Future[None]" = field(kw_only=True)


def deliver(tickets: Sequence[queue.Ticket]) -> None:
    """Wake the handlers of `tickets`, which share one event loop."""
    first = tickets[0]
    assert isinstance(first, _Asked)
    loop = first.settled.get_loop()
    if not loop.is_closed():
        loop.call_soon_threadsafe(_wake, tickets)


def _wake(tickets: Sequence[queue.Ticket]) -> None:
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
        # A single thread, because the cores belong to the workers.
        self._tokenizer = ThreadPoolExecutor(1, thread_name_prefix="clozeline-tokenizer")
        self._waiting_characters = 0
        self._stopped: asyncio.Future[None] | None = None
        self.last_deadline_seconds = 0.0  # latest deadline of the requests so far, on the scheduler's clock

    async def converse(
        self,
        request: Request,
        served: loading.LoadedModel,
        texts: Sequence[str],
        dialogue: Dialogue[Answer],
        timeout_milliseconds: int | None = None,
    ) -> Reply[Answer]:
        """Return the result of `dialogue` about `texts`; `served` answers each of its rounds.

        All questions are admitted together, or none. They have one deadline, and share the runs of the graph with other
        requests.

        Raises:
            ApiError: 422, the answer could be too large; 429, too much waits; 413, the work does not fit before the
                deadline; 504, the deadline passed; 499, the client left; 503, the server stops now. The waiting texts
                of the request do not run.
            ClozelineError: tokenization refuses a text.
        """
        patience = self.patience(request, timeout_milliseconds)
        current, asked = await self._admitted(served, texts, dialogue, patience)
        tickets = [*asked]
        while True:
            await self._all_settled(asked, patience)
            answered_seconds = self._scheduler.clock()
            work = partial(advanced, dialogue, [ticket.answers for ticket in asked])
            step = await self._made(work, current.reading_characters, patience, is_admitted=True)
            if isinstance(step, Concluded):
                headers = served.identity.headers | self._times(served, tickets, patience, answered_seconds)
                return Reply(step.result, headers, sum(ticket.tokens for ticket in tickets))
            current, asked = step, [self._ticket(served, question, patience) for question in step.questions]
            for ticket in asked:
                self._scheduler.follow(ticket)
            tickets += asked

    async def _admitted(
        self, served: loading.LoadedModel, texts: Sequence[str], dialogue: Dialogue[Any], patience: Patience
    ) -> "tuple[Round, list[_Asked]]":
        """Return the first round, and the tickets of its questions, which the scheduler has taken."""
        try:
            self._scheduler.check_open()
            current = await self._made(partial(advanced, dialogue), sum(map(len, texts)), patience)
            assert isinstance(current, Round), "a dialogue has at least one round"
            _check_answer_size(current.questions)
            tickets = [self._ticket(served, question, patience) for question in current.questions]
            self._scheduler.submit(*tickets, later_tokens=current.later_tokens)
        except admission.OverloadedError as error:
            raise self._overloaded(error) from error
        texts_read = [text for question in current.questions for text in question.texts]
        self._metrics.admitted(
            served.identity.name,
            [len(text) for text in texts_read],
            sum(map(served.model.count_unknown, texts_read)),
            tickets[0].arrived_seconds - patience.arrived_seconds,
        )
        return current, tickets

    async def _all_settled(self, tickets: "Sequence[_Asked]", patience: Patience) -> None:
        try:
            for ticket in tickets:
                await self._in_time(ticket.settled, patience)
                if isinstance(ticket.error, DeadlineError):
                    raise self._late(patience)
                if ticket.error:
                    self._metrics.rejected("failed")
                    raise ticket.error
        finally:
            for ticket in tickets:
                self._scheduler.give_up(ticket)  # changes nothing if it is settled

    async def tokenizing(self, request: Request, work: Callable[[], Made], num_characters: int) -> Made:
        """Return the result of `work` on this number of characters, without blocking other requests.

        Raises:
            ApiError: 429, too much waits; 504, the deadline passed; 499, the client left; 503, the server stops now.
        """
        return await self._made(work, num_characters, self.patience(request, None))

    def stop(self) -> None:
        """End every request at once with 503. Call it in the event loop."""
        stopped = self._stopping()
        if not stopped.done():
            stopped.set_result(None)

    def close(self) -> None:
        self._tokenizer.shutdown(wait=False, cancel_futures=True)

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

    def _ticket(self, served: loading.LoadedModel, asked: AnyQuestion, patience: Patience) -> "_Asked":
        settled = asyncio.get_running_loop().create_future()
        lane = queue.Lane(served.model, asked.output)
        return _Asked(lane, asked, self._scheduler.clock(), patience.deadline_seconds, settled=settled)

    async def _made(
        self, work: Callable[[], Made], num_characters: int, patience: Patience, *, is_admitted: bool = False
    ) -> Made:
        """Return the result of `work` on this number of characters. If the wait ends before `work` begins, it never
        runs.

        Raises:
            ApiError: 429, too much waits, and the request is not admitted yet; or what `_in_time` raises.
        """
        if num_characters <= _INLINE_CHARACTERS:
            return work()
        if self._waiting_characters > _MAX_WAITING_CHARACTERS and not is_admitted:
            raise self._overloaded(
                admission.OverloadedError(
                    "tokenizer_full",
                    given=f"{self._waiting_characters:,} characters before this request",
                    expected=f"at most {_MAX_WAITING_CHARACTERS:,} characters that wait to be tokenized",
                    retry_seconds=1,
                )
            )
        self._waiting_characters += num_characters
        making = asyncio.get_running_loop().run_in_executor(self._tokenizer, work)
        try:
            await self._in_time(making, patience)
            return making.result()
        finally:
            making.cancel()
            self._waiting_characters -= num_characters

    async def _in_time(self, awaited: "asyncio.Future[Any]", patience: Patience) -> None:
        """Wait until `awaited` is done, which is never cancelled.

        Raises:
            ApiError: 504, the deadline passed before; 499, the client left; 503, the server stops now.
        """
        deadline_seconds, stopped = patience.deadline_seconds, self._stopping()
        left_seconds = max(0.0, deadline_seconds - self._scheduler.clock())
        done, _ = await asyncio.wait({awaited}, timeout=min(_WATCH_AFTER_SECONDS, left_seconds))
        if done:
            return
        leaving = asyncio.ensure_future(_leaves(patience.request))
        try:
            left_seconds = max(0.0, deadline_seconds - self._scheduler.clock())
            await asyncio.wait({awaited, leaving, stopped}, timeout=left_seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            leaving.cancel()
        if awaited.done():
            return
        if stopped.done():
            self._metrics.rejected("stopped")
            raise errors.not_ready("stopping", hang_up=True)
        if not leaving.done():
            raise self._late(patience)
        self._metrics.rejected("dropped")
        raise errors.refused("client_left", given="a closed connection", expected="a client that waits")

    def _late(self, patience: Patience) -> Exception:
        self._metrics.rejected("deadline")
        waited_milliseconds = 1000 * (self._scheduler.clock() - patience.arrived_seconds)
        given = f"{waited_milliseconds:,.0f} ms since the request arrived"
        return errors.refused("deadline_passed", given=given, expected="an answer before the deadline")

    def _overloaded(self, error: admission.OverloadedError) -> Exception:
        self._metrics.rejected(error.reason)
        return overloaded(error)

    def _times(
        self, served: loading.LoadedModel, tickets: Sequence[_Asked], patience: Patience, now_seconds: float
    ) -> dict[str, str]:
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
