"""What a client is told when its request was fine, and yet there is no answer."""

from clozeline.serving.errors import ApiError, problem
from clozeline.serving.scheduling.admission import Refusal


def overloaded(refusal: Refusal) -> ApiError:
    """Why a request was not admitted: 429, or 413 where it is no use to come again."""
    if refusal.retry_after_seconds is None:
        return problem(
            413,
            "too_much_work",
            "the request is more than this server does before its deadline",
            given=refusal.given,
            expected=refusal.expected,
            do="send the texts in several requests, or give it a larger x-timeout-ms",
        )
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
        given=f"{1000 * waited_seconds:,.0f} ms since it arrived",
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


def internal_error(method: str, path: str, *, hang_up: bool = False) -> ApiError:
    return problem(
        500,
        "internal_error",
        "the server failed on this request; this is a fault of the server",
        given=f"{method} {path}",
        expected="an answer",
        do="look for the traceback in the server's log",
        headers={"connection": "close"} if hang_up else None,
    )


def not_http() -> ApiError:
    return problem(
        400,
        "not_http",
        "what came over the connection is no HTTP request",
        given="bytes that do not begin as one",
        expected="HTTP/1.1, without TLS",
        do="correct the client; a proxy in front of the server speaks TLS",
        headers={"connection": "close"},
    )


def head_too_large(max_bytes: int) -> ApiError:
    return problem(
        431,
        "head_too_large",
        "the request line and headers are too large",
        given=f"more than {max_bytes:,} bytes",
        expected=f"at most {max_bytes:,} bytes",
        do="send fewer or shorter headers, and the texts in the body",
        headers={"connection": "close"},
    )


def body_too_large(max_bytes: int) -> ApiError:
    return problem(
        413,
        "body_too_large",
        "the body of the request is too large",
        given=f"more than {max_bytes:,} bytes",
        expected=f"at most {max_bytes:,} bytes",
        do="send the texts in several requests",
        headers={"connection": "close"},
    )


def body_too_slow(max_seconds: float) -> ApiError:
    return problem(
        408,
        "body_too_slow",
        "the body of the request did not come to its end",
        given=f"a body that is not whole after {max_seconds:g} s",
        expected=f"the whole body within {max_seconds:g} s",
        do="send less at once, or over a faster line",
        headers={"connection": "close"},
    )


def bodies_full(max_bytes: int) -> ApiError:
    return problem(
        429,
        "overloaded",
        "this server holds as many requests as it has room for",
        given=f"bodies of more than {max_bytes:,} bytes together",
        expected=f"at most {max_bytes:,} bytes of all requests that are not answered",
        do="wait as long as Retry-After says, then send it again",
        headers={"retry-after": "1", "x-should-retry": "true", "connection": "close"},
    )
