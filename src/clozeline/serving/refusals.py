"""What a client is told when its request was fine, and yet there is no answer."""

from clozeline.serving.errors import ApiError, problem
from clozeline.serving.scheduling.admission import Refusal


def overloaded(refusal: Refusal) -> ApiError:
    return problem(
        429,
        "overloaded",
        "more work waits than this server answers in time",
        given=refusal.given,
        expected=refusal.expected,
        do="wait as long as Retry-After says, then send it again",
        headers={"retry-after": str(refusal.retry_after_seconds), "x-should-retry": "true"},
    )


def deadline_passed(waited_seconds: float) -> ApiError:
    return problem(
        504,
        "deadline_passed",
        "the answer was not there in time, and is no longer worked on",
        given=f"{1000 * waited_seconds:,.0f} ms since it was admitted",
        expected="an answer before the deadline of the request",
        do="send it again, with fewer texts or a larger x-timeout-ms",
    )


def client_left() -> ApiError:
    return problem(
        499,
        "client_left",
        "the client closed the connection before the answer was there",
        given="a closed connection",
        expected="a client that waits",
        do="nothing: the request is no longer worked on",
    )


def not_ready(phase: str, *, hang_up: bool = False) -> ApiError:
    headers = {"retry-after": "1"}
    return problem(
        503,
        "not_ready",
        f"the server is {phase}",
        given=f"phase {phase}",
        expected="phase ready",
        do="ask /health/ready until it answers 200",
        headers=headers | {"connection": "close"} if hang_up else headers,
    )


def no_key(given: str) -> ApiError:
    return problem(
        401,
        "no_key",
        "this server answers to those who have a key",
        given=given,
        expected="authorization: Bearer KEY, or x-api-key: KEY",
        do="ask whoever runs this server for a key",
        headers={"www-authenticate": "Bearer"},
    )


def worker_fault(fault: str) -> ApiError:
    return problem(
        503,
        "worker_fault",
        "a thread that runs models is not well",
        given=fault,
        expected="threads that answer",
        do="restart the server; its log has the traceback",
    )
