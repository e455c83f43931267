"""From the bytes of a request to its body. Errors name the field in JSON notation."""

import re
from collections.abc import Sequence
from email.message import Message
from typing import Any

import orjson
from starlette.datastructures import Headers

from clozeline.serving.errors import ApiError, problem, shortened, written

_JSON_TYPE = re.compile(r"application/(.+\+)?json")
_ABOUT_BODY = (b"content-type", b"content-encoding")
_PLAIN = [(b"content-type", b"application/json")]
_UTF_8 = ("utf-8", "utf8")
_AS_IT_IS = ("identity", "")
_EXPECTED = {
    "string_pattern_mismatch": "text with at least one visible character and no NUL",
    "string_too_short": "text with at least one visible character and no NUL",
    "too_short": "a list of at least 1 item",
    "missing": "a value for this key",
    "model_type": "a JSON object",
    "dict_type": "a JSON object",
    "bool_type": "true or false",
    "none_required": "null",
}
"""Replacements for messages of pydantic that name its internals."""


def read_json(headers: Headers, raw: bytes) -> int:
    """Return the length of `raw`, which is JSON as a whole.

    Raises:
        ApiError: 415, `headers` do not declare plain JSON in UTF-8.
    """
    if _is_plain(headers):
        return len(raw)
    given = headers.get("content-type")
    if given is None or not _JSON_TYPE.fullmatch(_parsed_type(given).get_content_type()):
        raise problem(
            415,
            "not_json",
            "the server does not read bodies of this content type",
            given=f"content-type: {given}" if given else "no content-type",
            expected="content-type: application/json",
            do="add the header (curl: -H 'content-type: application/json')",
        )
    check_encoding(headers)
    return len(raw)


def _is_plain(headers: Headers) -> bool:
    """Return whether the headers say only `application/json`, as nearly all do: parsing a content type is slow."""
    about = [header for header in headers.raw if header[0] in _ABOUT_BODY]
    return about == _PLAIN


def check_encoding(headers: Headers) -> None:
    """Raise ApiError (415) if `headers` declare a compressed body, or a charset other than UTF-8."""
    codings = ", ".join(headers.getlist("content-encoding"))
    if any(coding.strip().lower() not in _AS_IT_IS for coding in codings.split(",")):
        raise problem(
            415,
            "compressed_body",
            "the body is compressed, and the server reads only uncompressed bodies",
            given=f"content-encoding: {codings}",
            expected="uncompressed JSON, with no content-encoding",
            do="send it uncompressed; split a large body into several requests",
            headers={"accept-encoding": "identity"},
        )
    content_type = headers.get("content-type", "")
    if str(_parsed_type(content_type).get_param("charset", "utf-8")).lower() not in _UTF_8:
        raise problem(
            415,
            "not_utf8",
            "the server does not read this charset",
            given=f"content-type: {content_type}",
            expected="JSON in UTF-8, with charset=utf-8 or no charset",
            do="encode the body as UTF-8 and correct the header",
        )


def parse_json(raw: bytes) -> Any:
    """Return the content of `raw`: JSON in UTF-8, without lone surrogates or NaN.

    Raises:
        ApiError: 400, `raw` is not JSON.
    """
    try:
        return orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise problem(
            400,
            "malformed_json",
            "the body is not JSON",
            given=f"{error.msg} at line {error.lineno}, column {error.colno}" if raw else "an empty body",
            expected='a JSON object in UTF-8, such as {"inputs": "…"}',
            do="correct the body; /docs has an example for each route",
        ) from error


def unusable(faults: Sequence[Any], *place: str) -> ApiError:
    """Return a 422 for the first of the `faults` that pydantic found at `place`; unknown keys come first."""
    fault = min(faults, key=lambda fault: fault["type"] != "unknown_key")
    param = _param((*place, *fault["loc"]))
    more = f" (1 of {len(faults)} faults)" if len(faults) > 1 else ""
    if fault["type"] == "unknown_key":
        context = fault["ctx"]
        param = shortened(f"{param}.{context['key']}" if param else context["key"])
        return problem(
            422,
            "unknown_key",
            f"`{param}` is not a key of this request{more}",
            param=param,
            given=context["key"],
            expected=fault["msg"],
            do=f"rename it to `{context['near']}`" if context["near"] else "remove it or correct its name",
        )
    return problem(
        422,
        "invalid_request",
        f"`{param or 'the body'}` cannot be used{more}",
        param=param,
        given="nothing" if fault["type"] == "missing" else written(fault["input"]),
        expected=_expected(fault),
        do="correct it; /docs has an example for each route",
    )


def _param(location: tuple[int | str, ...]) -> str | None:
    """Return `inputs[3]` for `("inputs", "(texts)", 3)`: parts in parentheses are tags of fields.py."""
    path = ""
    for part in location:
        if isinstance(part, int):
            path += f"[{part}]"
        elif not part.startswith("("):
            path += f".{part}" if path else part
    return path or None


def _expected(fault: Any) -> str:
    context = fault.get("ctx", {})
    if fault["type"] == "too_long":
        return f"a list of at most {context['max_length']} items"
    if fault["type"] == "string_too_long":
        return f"a text of at most {context['max_length']:,} characters"
    if fault["type"] == "literal_error":
        return "true" if context["expected"] == "True" else str(context["expected"]).replace("'", '"')
    message: str = fault["msg"]
    return _EXPECTED.get(fault["type"], message.removeprefix("Input should be "))


def _parsed_type(content_type: str) -> Message:
    parsed = Message()
    parsed["content-type"] = content_type
    return parsed
