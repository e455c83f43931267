"""MLflow's scoring server: /invocations in its four shapes, and /version.

The answers equal those of `mlflow.pyfunc.load_model(…).predict`, which registry/served_model.py gives.
"""

from importlib.metadata import version
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, WithJsonSchema, model_validator
from pydantic.config import JsonDict
from pydantic_core import PydanticCustomError
from starlette.responses import PlainTextResponse, Response

from clozeline.inference import fields
from clozeline.inference.answerer import Answer
from clozeline.inference.classifier import LabelScore
from clozeline.inference.fields import StrictModel
from clozeline.inference.package import kind_of, resolved
from clozeline.inference.tagger import Entity
from clozeline.serving.errors import ErrorDetail
from clozeline.serving.http.bodies import MAX_TEXTS, DataframeSplit, Sent, Texts
from clozeline.serving.http.dialects import Dialect, ErrorBody, Words, sentence
from clozeline.serving.http.house_labels import ANSWERING, CLASSIFYING_PAIRS
from clozeline.serving.http.house_texts import Mask
from clozeline.serving.http.operation import Call, Example, JsonResponse, Operation
from clozeline.serving.models import ANY

_PATH = "/invocations"
_SHAPES = ("dataframe_split", "dataframe_records", "instances", "inputs")
_TEXT: dict[str, Any] = TypeAdapter(fields.Text).json_schema()
_TEXTS: dict[str, Any] = TypeAdapter(Texts).json_schema()
_RECORDS: dict[str, Any] = _TEXTS | {"items": {"type": "object"}}
_CODES = {
    401: "UNAUTHENTICATED",
    404: "RESOURCE_DOES_NOT_EXIST",
    429: "REQUEST_LIMIT_EXCEEDED",
    500: "INTERNAL_ERROR",
    503: "TEMPORARILY_UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}
EXAMPLES = {
    "inputs": Example("Texts", {"inputs": ["Return the [MASK] of the list."], "params": {"top_k": 2}}),
    "instances": Example("Instances", {"instances": [{"text": "Open a file."}]}),
    "dataframe_split": Example(
        "A dataframe by columns and rows",
        {"dataframe_split": {"columns": ["id", "text"], "data": [[1, "Open a file."], [2, "Sort a list."]]}},
    ),
    "dataframe_records": Example("A dataframe as a list of rows", {"dataframe_records": [{"text": "Open a file."}]}),
    "pairs": Example(
        "Pairs of texts, for a model that reads pairs",
        {"instances": [{"text": "How do I sort a list?", "text_pair": "Sort a list in place."}]},
        ability=CLASSIFYING_PAIRS,
    ),
    "answers": Example(
        "Questions with their contexts, for a question-answering model",
        {"instances": [{"question": "Where does Maria live?", "context": "Maria Lopez lives in Oslo."}]},
        ability=ANSWERING,
    ),
}


def _given(shape: str) -> JsonDict:
    return {"required": [shape], "properties": {shape: {"not": {"type": "null"}}}}


class InvocationsRequest(StrictModel):
    """Exactly one of the four shapes. Of several columns, `text` is read. A classifier of pairs reads `text` and
    `text_pair`, and a question-answering model `question` and `context`: two columns, or JSON with these keys.
    """

    model_config = ConfigDict(json_schema_extra={"oneOf": [_given(shape) for shape in _SHAPES]})

    dataframe_split: DataframeSplit | None = None
    dataframe_records: Annotated[list[dict[str, Any]], Field(min_length=1, max_length=MAX_TEXTS)] | None = None
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
    masks: list[Mask] | None = None
    completion: ContinuedText | None = None
    labels: list[LabelScore] | None = None
    entities: list[Entity] | None = None
    answers: list[Answer] | None = None


class InvocationsResponse(BaseModel):
    predictions: list[InvocationRecord]


class MlflowError(ErrorBody):
    error_code: str
    message: str


def _said(status: int, detail: ErrorDetail) -> MlflowError:
    return MlflowError(error_code=_CODES.get(status, "BAD_REQUEST"), message=sentence(detail))


async def invocations(call: Call, body: InvocationsRequest) -> Response:
    (shape,) = (shape for shape in _SHAPES if getattr(body, shape) is not None)
    sent = Sent(shape, getattr(body, shape))
    params = body.params or fields.InvocationParams()
    served = call.served(ANY, params.model)
    answer = resolved(kind_of(served.model.manifest.task).invocations)
    records, headers = await answer(call, served.identity.name, sent, params)
    return JsonResponse({"predictions": records}, headers=headers)


async def mlflow_version(call: Call) -> Response:
    return PlainTextResponse(version("mlflow"))


MLFLOW = Dialect(
    Words(MlflowError, _said, unusable=400),
    (
        Operation(
            path=_PATH,
            answer=invocations,
            summary="Run a model, as on MLflow's scoring server",
            result_description="A record for each text",
            result=InvocationsResponse,
            ability=ANY,
            body=InvocationsRequest,
            examples=EXAMPLES,
            place="rows[{}]".format,  # every format has rows
        ),
        Operation(
            path="/version",
            answer=mlflow_version,
            summary="Version of MLflow, whose protocol this is",
            result=PlainTextResponse.media_type,
        ),
    ),
    tag="MLflow",
)
