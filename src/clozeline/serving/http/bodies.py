"""Bodies of requests: the types that all protocols share, their limits, and the way from bytes to a body.

Errors name the field in JSON notation.

`/models/NAME` before the path of any route lets the model called NAME answer. It is for clients that know a base URL
and cannot send a name, such as those of text-embeddings-inference and of Hugging Face's pipelines. The prefix changes
nothing on routes about the server itself.
"""

import re
from collections.abc import Awaitable, Sequence
from email.message import Message
from typing import Annotated, Any, Literal

import orjson
from pydantic import Discriminator, Field, Tag, TypeAdapter, ValidationError
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from clozeline.inference import fields
from clozeline.serving.errors import ApiError, problem, refused, shortened, written

_JSON_TYPE = re.compile(r"application/(.+\+)?json")
_ABOUT_BODY = (b"content-type", b"content-encoding")
_PLAIN = [(b"content-type", b"application/json")]
_UTF_8 = ("utf-8", "utf8")
_AS_IT_IS = ("identity", "")
# Replacements for messages of pydantic that name its internals.
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
MAX_TEXTS = 256
MAX_TIMEOUT_MILLISECONDS = 600_000
TEXT_TAG = "(one text)"
TEXTS_TAG = "(texts)"
Texts = Annotated[list[fields.Text], Field(min_length=1, max_length=MAX_TEXTS)]
_TEXTS = TypeAdapter(Texts)
TruncationDirection = Annotated[
    Literal["right", "Right"] | None,
    Field(description="End at which long texts are cut; only the right end is supported."),
]
PromptName = Annotated[
    str | None, Field(description="Prompt of the model, put before each text; null: its default prompt, if it has one.")
]
NoPromptName = Annotated[None, Field(description="Always null: texts are tokenized as they are.")]
TimeoutMilliseconds = Annotated[
    int,
    Field(
        ge=1,
        le=MAX_TIMEOUT_MILLISECONDS,
        description="Milliseconds until the request ends with 504; without it, the timeout of the server applies.",
    ),
]
PREFIX = "/models/"
# Key of a scope: the model name from the path prefix.
_NAME = "clozeline.encoder"
PAIR_TAG, PAIRS_TAG = "(one pair)", "(pairs)"
# Tags for kinds of values, which pydantic puts into locations of errors. Clients do not see parts in parentheses.
FLAT_TAG, NESTED_TAG, NUMBER_TAG = "(flat)", "(nested)", "(number)"


def read_json(headers: Headers, raw: bytes) -> int:
    """Return the length of `raw`, which is JSON as a whole.

    Raises:
        ApiError: 415, `headers` do not declare plain JSON in UTF-8.
    """
    if [header for header in headers.raw if header[0] in _ABOUT_BODY] == _PLAIN:
        return len(raw)  # as of nearly all requests: parsing a content type is slow
    given = headers.get("content-type")
    if given is None or not _JSON_TYPE.fullmatch(_parsed_type(given).get_content_type()):
        raise refused(
            "not_json",
            given=f"content-type: {given}" if given else "no content-type",
            expected="content-type: application/json",
        )
    check_encoding(headers)
    return len(raw)


def check_encoding(headers: Headers) -> None:
    """Raise ApiError (415) if `headers` declare a compressed body, or a charset other than UTF-8."""
    codings = ", ".join(headers.getlist("content-encoding"))
    if any(coding.strip().lower() not in _AS_IT_IS for coding in codings.split(",")):
        raise refused(
            "compressed_body",
            given=f"content-encoding: {codings}",
            expected="uncompressed JSON, with no content-encoding",
            headers={"accept-encoding": "identity"},
        )
    content_type = headers.get("content-type", "")
    if str(_parsed_type(content_type).get_param("charset", "utf-8")).lower() not in _UTF_8:
        raise refused(
            "not_utf8",
            given=f"content-type: {content_type}",
            expected="JSON in UTF-8, with charset=utf-8 or no charset",
        )


def parse_json(raw: bytes) -> Any:
    """Return the content of `raw`: JSON in UTF-8, without lone surrogates or NaN.

    Raises:
        ApiError: 400, `raw` is not JSON.
    """
    try:
        return orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise refused(
            "malformed_json",
            given=f"{error.msg} at line {error.lineno}, column {error.colno}" if raw else "an empty body",
            expected='a JSON object in UTF-8, such as {"inputs": "…"}',
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
    """Return `inputs[3]` for `("inputs", "(texts)", 3)`: parts in parentheses are tags of a union."""
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


def inputs_kind(inputs: object) -> str | None:
    if isinstance(inputs, str):
        return TEXT_TAG
    return TEXTS_TAG if isinstance(inputs, list) else None


def nesting(given: object) -> str | None:
    """Return the tag of a list of lists or of a flat list; None if it is not a list."""
    if not isinstance(given, list):
        return None
    return NESTED_TAG if given and isinstance(given[0], list) else FLAT_TAG


Inputs = Annotated[
    Annotated[fields.Text, Tag(TEXT_TAG)] | Annotated[Texts, Tag(TEXTS_TAG)],
    Field(description=f"One text, or a list of 1 to {MAX_TEXTS} texts."),
    Discriminator(
        inputs_kind,
        custom_error_type="inputs_type",
        custom_error_message=f"a text, or a list of 1 to {MAX_TEXTS} texts",
    ),
]
Dimensions = Annotated[
    int | None,
    Field(ge=1, description="Number of leading dimensions to keep; each vector is normalized again. null: all."),
    fields.WHOLE,
]


def checked_texts(given: Sequence[Any], param: str) -> list[str]:
    """Return `given` as the texts of a request.

    Raises:
        ApiError: 422, an item is not a text; names its place in `param`.
    """
    try:
        return _TEXTS.validate_python(list(given), strict=True)
    except ValidationError as error:
        raise unusable(error.errors(include_url=False), param) from error


def texts_of(inputs: str | list[str]) -> list[str]:
    return [inputs] if isinstance(inputs, str) else inputs


class ModelPrefix:
    """Removes the prefix: every middleware within, and the route, see the path of the route alone."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        return self._app(without_prefix(scope), receive, send)


def asked_path(scope: Scope) -> str:
    """Return the whole path, as the client sent it."""
    name, path = prefixed_name(scope), str(scope["path"])
    return path if name is None else f"{PREFIX}{name}{path}"


def prefixed_name(scope: Scope) -> str | None:
    """Return the name before the path, if there is one."""
    name: str | None = scope.get(_NAME)
    return name


def without_prefix(scope: Scope) -> Scope:
    """Return the scope with the prefix removed from the path; the same scope without a prefix."""
    if scope["type"] != "http" or not scope["path"].startswith(PREFIX):
        return scope
    name, _, path = scope["path"].removeprefix(PREFIX).partition("/")
    return {**scope, "path": f"/{path}", _NAME: name} if name and path else scope
