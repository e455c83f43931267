"""What a client is told whose request goes no further than the edge."""

from clozeline.serving.errors import ApiError, problem


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
