"""Bodies of requests: the types that all protocols share, their limits, and the way from bytes to a body.

Errors name the field in JSON notation.

`/models/NAME` before the path of any route lets the model called NAME answer. It is for clients that know a base URL
and cannot send a name, such as those of text-embeddings-inference and of Hugging Face's pipelines. The prefix changes
nothing on routes about the server itself.

MLflow's clients send texts as dataframes by columns or by rows, as instances, or as plain inputs.
"""

import re
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from email.message import Message
from itertools import zip_longest
from typing import Annotated, Any, Literal

import orjson
from pydantic import Discriminator, Field, Tag, TypeAdapter, ValidationError
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from clozeline.inference import fields
from clozeline.inference.fields import StrictModel
from clozeline.serving.errors import ApiError, problem, refused, shortened, written

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
MAX_TEXTS = 256
MAX_ANSWER_CHARACTERS = 16 * 2**20
"""Limit for the texts in one answer: 100 KB of masks with 100 candidates each would make gigabytes."""
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
_NAME = "clozeline.encoder"
"""Key of a scope: the model name from the path prefix."""
TEXT_COLUMN = "text"
Records = tuple[list[dict[str, Any]], dict[str, str]]
"""A record for each text, and headers that name the model."""
_Names = tuple[str, str]
PAIR_TAG, PAIRS_TAG = "(one pair)", "(pairs)"
FLAT_TAG, NESTED_TAG, NUMBER_TAG = "(flat)", "(nested)", "(number)"
"""Tags for kinds of values, which pydantic puts into locations of errors. Clients do not see parts in parentheses."""


def read_json(headers: Headers, raw: bytes) -> int:
    """Return the length of `raw`, which is JSON as a whole.

    Raises:
        ApiError: 415, `headers` do not declare plain JSON in UTF-8.
    """
    if _is_plain(headers):
        return len(raw)
    given = headers.get("content-type")
    if given is None or not _JSON_TYPE.fullmatch(_parsed_type(given).get_content_type()):
        raise refused(
            "not_json",
            given=f"content-type: {given}" if given else "no content-type",
            expected="content-type: application/json",
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


def _name_kind(given: object) -> str | None:
    return {str: TEXT_TAG, int: NUMBER_TAG, float: NUMBER_TAG}.get(type(given))


_ColumnName = Annotated[
    Annotated[str, Tag(TEXT_TAG)] | Annotated[int, fields.WHOLE, Tag(NUMBER_TAG)],
    Discriminator(_name_kind, custom_error_type="name_type", custom_error_message="a name, or a number"),
]


class DataframeSplit(StrictModel):
    columns: Annotated[list[_ColumnName], Field(min_length=1)]
    data: Annotated[list[list[Any]], Field(min_length=1, max_length=MAX_TEXTS)]
    index: list[Any] | None = None

    def records(self) -> list[dict[str, Any]]:
        names = [str(name) for name in self.columns]
        return [dict(zip_longest(names, row[: len(names)])) for row in self.data]


@dataclass(frozen=True, slots=True)
class Sent:
    """Content of a request, and the name of its shape."""

    shape: str
    given: Any

    def texts(self) -> list[str]:
        """Return the text of each row.

        Raises:
            ApiError: 422, a row is not a text, or it is not clear which column holds the texts.
        """
        rows = self._rows()
        if isinstance(rows, dict):
            rows = rows.get(_text_column(rows), None)
        return checked_texts(_column(rows) if isinstance(rows, list) else [rows], self.shape)

    def pairs(self, names: _Names) -> list[tuple[str, str]]:
        """Return two texts for each row: the columns `names`, or JSON with these keys, as in registry/served_model.py.

        Raises:
            ApiError: 422, a row lacks one of the columns, has no text in it, or is not such JSON.
        """
        rows = self._rows()
        if isinstance(rows, dict):
            rows = _turned(rows)
        records = [_record(row) for row in (rows if isinstance(rows, list) else [rows])]
        for number, record in enumerate(records):
            if record is None or not set(names) <= set(record):
                raise _no_pair(f"{self.shape}[{number}]", record, names)
        columns = ([record[name] for record in records if record] for name in names)
        first, second = (checked_texts(column, self.shape) for column in columns)
        return list(zip(first, second, strict=True))

    def _rows(self) -> Any:
        return self.given.records() if isinstance(self.given, DataframeSplit) else self.given


def _turned(columns: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the rows of `columns`. Each column is a list, or the value of a single row."""
    listed = {name: value if isinstance(value, list) else [value] for name, value in columns.items()}
    return [dict(zip(listed, row, strict=True)) for row in zip_longest(*listed.values())]


def _record(row: Any) -> dict[str, Any] | None:
    """Return a row as a dict, parsed from JSON if it is a string; None if it is neither."""
    if isinstance(row, list) and len(row) == 1:
        row = row[0]
    if isinstance(row, str):
        try:
            row = orjson.loads(row)
        except orjson.JSONDecodeError:
            return None
    return row if isinstance(row, dict) else None


def _no_pair(place: str, record: dict[str, Any] | None, names: _Names) -> ApiError:
    first, second = names
    return problem(
        422,
        "no_pair",
        f"`{place}` does not hold the two texts that the model reads",
        given="no columns" if record is None else f"columns: {', '.join(record) or 'none'}",
        expected=f"`{first}` and `{second}`",
        do=f'send both texts as columns, or each row as JSON: {{"{first}": "…", "{second}": "…"}}',
        param=place,
    )


def _column(rows: list[Any]) -> list[Any]:
    if rows and isinstance(rows[0], dict):
        name = _text_column(rows[0])
        return [row.get(name) if isinstance(row, dict) else row for row in rows]
    return [row[0] if isinstance(row, list) and len(row) == 1 else row for row in rows]


def _text_column(names: Sequence[str] | dict[str, Any]) -> str:
    if len(names) == 1:
        return next(iter(names))
    if TEXT_COLUMN in names:
        return TEXT_COLUMN
    raise problem(
        422,
        "no_text_column",
        "it is unclear which column holds the texts",
        given=f"columns: {', '.join(names) or 'none'}",
        expected=f"one column, or a column named `{TEXT_COLUMN}`",
        do=f"name the column with the texts `{TEXT_COLUMN}`",
    )
