"""Errors of a request that is not admitted, is late, or whose client has left."""

from clozeline.serving.errors import ApiError, problem
from clozeline.serving.scheduling.admission import Refusal


def overloaded(refusal: Refusal) -> ApiError:
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
