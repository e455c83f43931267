"""MLflow's scoring server: /invocations in its four shapes, and /version.

Its clients send texts as dataframes by columns or by rows, as instances, or as plain inputs.

The answers equal those of `mlflow.pyfunc.load_model(…).predict`, which registry/served_model.py gives.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from itertools import zip_longest
from typing import Annotated, Any

import orjson
from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, TypeAdapter, WithJsonSchema, model_validator
from pydantic.config import JsonDict
from pydantic_core import PydanticCustomError
from starlette.responses import PlainTextResponse, Response

from clozeline.inference import answerer, classifier, fields, tokenization
from clozeline.inference.fields import StrictModel
from clozeline.serving import errors, models
from clozeline.serving.http import bodies, house_texts, operation

_PATH = "/invocations"
_SHAPES = ("dataframe_split", "dataframe_records", "instances", "inputs")
_TEXT: dict[str, Any] = TypeAdapter(fields.Text).json_schema()
_TEXTS: dict[str, Any] = TypeAdapter(bodies.Texts).json_schema()
_RECORDS: dict[str, Any] = _TEXTS | {"items": {"type": "object"}}
_CODES = {
    401: "UNAUTHENTICATED",
    404: "RESOURCE_DOES_NOT_EXIST",
    429: "REQUEST_LIMIT_EXCEEDED",
    500: "INTERNAL_ERROR",
    503: "TEMPORARILY_UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}


TEXT_COLUMN = "text"


_NAME_TAGS: Mapping[type, str] = {str: bodies.TEXT_TAG, int: bodies.NUMBER_TAG, float: bodies.NUMBER_TAG}
_ColumnName = Annotated[
    Annotated[str, Tag(bodies.TEXT_TAG)] | Annotated[int, fields.WHOLE, Tag(bodies.NUMBER_TAG)],
    Discriminator(
        lambda given: _NAME_TAGS.get(type(given)),
        custom_error_type="name_type",
        custom_error_message="a name, or a number",
    ),
]


class DataframeSplit(StrictModel):
    columns: Annotated[list[_ColumnName], Field(min_length=1)]
    data: Annotated[list[list[Any]], Field(min_length=1, max_length=bodies.MAX_TEXTS)]
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
        first = rows[0] if rows else self.given
        name = _text_column(first) if isinstance(first, dict) else ""
        given = [row.get(name) if isinstance(row, dict) else row for row in rows]
        return bodies.checked_texts([_unwrapped(one) for one in given], self.shape)

    def pairs(self, names: tuple[str, str]) -> list[tuple[str, str]]:
        """Return two texts for each row: the columns `names`, or JSON with these keys, as in registry/served_model.py.

        Raises:
            ApiError: 422, a row lacks one of the columns, has no text in it, or is not such JSON.
        """
        records = [_record(row) for row in self._rows()]
        for number, record in enumerate(records):
            if record is None or not set(names) <= set(record):
                raise _no_pair(f"{self.shape}[{number}]", record, names)
        columns = ([record[name] for record in records if record] for name in names)
        first, second = (bodies.checked_texts(column, self.shape) for column in columns)
        return list(zip(first, second, strict=True))

    def _rows(self) -> list[Any]:
        """Return the rows. The columns of an object are lists, or the values of a single row."""
        rows = self.given.records() if isinstance(self.given, DataframeSplit) else self.given
        if isinstance(rows, dict):
            columns = [value if isinstance(value, list) else [value] for value in rows.values()]
            return [dict(zip(rows, row, strict=True)) for row in zip_longest(*columns)]
        return rows if isinstance(rows, list) else [rows]


def _unwrapped(row: Any) -> Any:
    return row[0] if isinstance(row, list) and len(row) == 1 else row


def _record(row: Any) -> dict[str, Any] | None:
    """Return a row as a dict, parsed from JSON if it is a string; None if it is neither."""
    row = _unwrapped(row)
    if isinstance(row, str):
        try:
            row = orjson.loads(row)
        except orjson.JSONDecodeError:
            return None
    return row if isinstance(row, dict) else None


def _no_pair(place: str, record: dict[str, Any] | None, names: tuple[str, str]) -> errors.ApiError:
    first, second = names
    return errors.problem(
        422,
        "no_pair",
        f"`{place}` does not hold the two texts that the model reads",
        given="no columns" if record is None else f"columns: {', '.join(record) or 'none'}",
        expected=f"`{first}` and `{second}`",
        do=f'send both texts as columns, or each row as JSON: {{"{first}": "…", "{second}": "…"}}',
        param=place,
    )


def _text_column(names: dict[str, Any]) -> str:
    if len(names) == 1:
        return next(iter(names))
    if TEXT_COLUMN in names:
        return TEXT_COLUMN
    given, expected = f"columns: {', '.join(names) or 'none'}", f"one column, or a column named `{TEXT_COLUMN}`"
    raise errors.refused("no_text_column", given=given, expected=expected)


def _given(shape: str) -> JsonDict:
    return {"required": [shape], "properties": {shape: {"not": {"type": "null"}}}}


class InvocationsRequest(StrictModel):
    """Exactly one of the four shapes. Of several columns, `text` is read. A classifier of pairs reads `text` and
    `text_pair`, and a question-answering model `question` and `context`: two columns, or JSON with these keys.
    """

    model_config = ConfigDict(json_schema_extra={"oneOf": [_given(shape) for shape in _SHAPES]})

    dataframe_split: DataframeSplit | None = None
    dataframe_records: Annotated[list[dict[str, Any]], Field(min_length=1, max_length=bodies.MAX_TEXTS)] | None = None
    instances: Annotated[Any, WithJsonSchema({"anyOf": [_TEXTS, _RECORDS, {"type": "null"}]})] = None
    inputs: Annotated[Any, WithJsonSchema({"anyOf": [_TEXT, _TEXTS, {"type": "object"}, {"type": "null"}]})] = None
    params: fields.InvocationParams | None = None

    @model_validator(mode="after")
    def _one_shape(self) -> "InvocationsRequest":
        if sum(getattr(self, shape) is not None for shape in _SHAPES) != 1:
            raise PydanticCustomError(
                "one_shape", "exactly one of dataframe_split, dataframe_records, instances, inputs"
            )
        return self


class ContinuedText(BaseModel):
    text: str
    tokens: list[int]
    scores: list[float]
    finish_reason: str


class InvocationRecord(BaseModel):
    """Answers to one text: `embedding` from an encoder, with `masks` or a `completion` from a language model;
    `labels` from a classifier; `entities` from a tagger; `answers` from a question-answering model.
    """

    model_config = ConfigDict(title="Record")

    embedding: list[float] | None = None
    masks: list[house_texts.Mask] | None = None
    completion: ContinuedText | None = None
    labels: list[classifier.LabelScore] | None = None
    entities: list[classifier.Entity] | None = None
    answers: list[answerer.Answer] | None = None


class InvocationsResponse(BaseModel):
    predictions: list[InvocationRecord]


class MlflowError(operation.ErrorBody):
    error_code: str
    message: str


async def invocations(call: operation.Call, body: InvocationsRequest) -> Response:
    """Run a model, as on MLflow's scoring server.

    Returns:
        A record for each text.
    """
    (shape,) = (shape for shape in _SHAPES if getattr(body, shape) is not None)
    sent = Sent(shape, getattr(body, shape))
    params = body.params or fields.InvocationParams()
    served = call.served(models.ANY, params.model)
    names = served.model.pair_names(reads_pairs=served.model.manifest.reads_pairs)
    given: Sequence[tokenization.Given] = sent.pairs(names) if names else sent.texts()
    dialogue = served.model.recording(given, top_k=params.top_k, truncate=params.truncate)
    reply = await call.converse(served, tokenization.each_text(given), dialogue)
    if part := served.model.part:
        call.confident(served, [record[part] for record in reply.answers])
    return operation.JsonResponse({"predictions": reply.answers}, headers=reply.headers)


async def mlflow_version(call: operation.Call) -> Response:
    """Version of MLflow, whose protocol this is."""
    return PlainTextResponse(version("mlflow"))


MLFLOW = operation.Dialect(
    operation.Words(
        MlflowError,
        lambda status, detail: MlflowError(
            error_code=_CODES.get(status, "BAD_REQUEST"), message=operation.sentence(detail)
        ),
        unusable=400,
    ),
    (
        # Every format has rows.
        operation.Operation(
            path=_PATH, answer=invocations, result=InvocationsResponse, ability=models.ANY, place="rows[{}]".format
        ),
        operation.Operation(path="/version", answer=mlflow_version, result=PlainTextResponse.media_type),
    ),
    tag="MLflow",
)
