"""From the bytes of a request to its body; what cannot be used is named by its field, in the words of JSON."""

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
"""Instead of pydantic's words, where they speak of its own workings."""


def read_json(headers: Headers, raw: bytes) -> int:
    """All of `raw` is JSON, if `headers` say so.

    Raises:
        ApiError: 415, they say something else.
    """
    if _is_plain(headers):
        return len(raw)
    given = headers.get("content-type")
    if given is None or not _JSON_TYPE.fullmatch(_parsed_type(given).get_content_type()):
        raise problem(
            415,
            "not_json",
            "the body is of a type that is not read here",
            given=f"content-type: {given}" if given else "no content-type",
            expected="content-type: application/json",
            do="add the header (curl: -H 'content-type: application/json')",
        )
    check_encoding(headers)
    return len(raw)


def _is_plain(headers: Headers) -> bool:
    """Whether they say nothing of the body but that it is JSON, as nearly all do: parsing a content type takes long."""
    about = [header for header in headers.raw if header[0] in _ABOUT_BODY]
    return about == _PLAIN


def check_encoding(headers: Headers) -> None:
    """Raises ApiError: 415, the body is compressed, or its letters are said to be others than UTF-8."""
    codings = ", ".join(headers.getlist("content-encoding"))
    if any(coding.strip().lower() not in _AS_IT_IS for coding in codings.split(",")):
        raise problem(
            415,
            "compressed_body",
            "the body is compressed, and only plain bodies are read here",
            given=f"content-encoding: {codings}",
            expected="JSON as it is, with no content-encoding",
            do="send it uncompressed; of a large one, the texts in several requests",
            headers={"accept-encoding": "identity"},
        )
    content_type = headers.get("content-type", "")
    if str(_parsed_type(content_type).get_param("charset", "utf-8")).lower() not in _UTF_8:
        raise problem(
            415,
            "not_utf8",
            "the body is said to be in letters that are not read here",
            given=f"content-type: {content_type}",
            expected="JSON in UTF-8, with charset=utf-8 or no charset",
            do="encode the body as UTF-8 and correct the header",
        )


def parse_json(raw: bytes) -> Any:
    """What `raw` says, which is UTF-8 without lone surrogates or NaN.

    Raises:
        ApiError: 400, it is not JSON.
    """
    try:
        return orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise problem(
            400,
            "malformed_json",
            "the body is not JSON",
            given=f"{error.msg} at line {error.lineno}, column {error.colno}" if raw else "an empty body",
            expected='a JSON object in UTF-8, as {"inputs": "…"}',
            do="mend the body; /docs has an example for each route",
        ) from error


def unusable(faults: Sequence[Any], *place: str) -> ApiError:
    """422: of the `faults` that pydantic finds in what stands at `place` the first, unknown keys before others."""
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
            do=f"rename it to `{context['near']}`" if context["near"] else "remove it, or correct its name",
        )
    return problem(
        422,
        "invalid_request",
        f"`{param or 'the body'}` cannot be used{more}",
        param=param,
        given="nothing" if fault["type"] == "missing" else written(fault["input"]),
        expected=_expected(fault),
        do="mend it; /docs has an example for each route",
    )


def _param(location: tuple[int | str, ...]) -> str | None:
    """`("inputs", "(texts)", 3)` is `inputs[3]`: what stands in brackets is a tag of fields.py."""
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
