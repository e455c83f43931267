"""What clients of the Open Inference Protocol send and get, with examples."""

from typing import Annotated, Any

from fastapi.openapi.models import Example
from pydantic import BaseModel, Field

from clozeline.serving import schemas
from clozeline.serving.protocols import tensors
from clozeline.serving.protocols.infer_parameters import InferParameters
from clozeline.serving.protocols.named_outputs import RequestedOutput


class InferRequest(schemas.RequestBody):
    id: str | None = None
    parameters: InferParameters = InferParameters()
    inputs: Annotated[list[tensors.InputTensor], Field(min_length=1, max_length=2)]
    outputs: Annotated[list[RequestedOutput], Field(default_factory=list, max_length=4)]


class InferResponse(BaseModel):
    model_name: str
    model_version: str
    id: str | None = None
    outputs: list[tensors.Tensor]


class ServerMetadata(BaseModel):
    name: str
    version: str
    extensions: list[str]


class TensorMetadata(BaseModel):
    name: str
    datatype: str
    shape: list[int]


class ModelMetadata(BaseModel):
    name: str
    versions: list[str]
    platform: str
    inputs: list[TensorMetadata]
    outputs: list[TensorMetadata]


class ModelReady(BaseModel):
    name: str
    ready: bool


def _one(name: str, text: str) -> dict[str, Any]:
    return {"name": name, "shape": [1], "datatype": "BYTES", "data": [text]}


_TEXTS = {"name": "text", "shape": [2], "datatype": "BYTES", "data": ["Sort a list.", "Open a file."]}
EXAMPLES: dict[str, Example] = {
    "texts": {"summary": "Two texts", "value": {"inputs": [_TEXTS]}},
    "named": {
        "summary": "Words for a mask",
        "value": {
            "id": "1",
            "parameters": {"top_k": 3},
            "inputs": [_one("text", "Return the [MASK].") | {"shape": [1, 1], "data": [["Return the [MASK]."]]}],
            "outputs": [{"name": "token"}, {"name": "score"}],
        },
    },
    "pairs": {
        "summary": "Labels of a pair of texts, of a model that reads pairs",
        "value": {"inputs": [_one("text", "How do I sort a list?"), _one("text_pair", "Sort a list in place.")]},
    },
    "entities": {
        "summary": "The entities of a text, of a tagger",
        "value": {
            "parameters": {"aggregation_strategy": "first"},
            "inputs": [_one("text", "Maria Lopez lives in Oslo.")],
            "outputs": [{"name": "entities"}],
        },
    },
    "answers": {
        "summary": "Answers from a context, of a model that is asked questions",
        "value": {
            "parameters": {"top_k": 2, "handle_impossible_answer": True},
            "inputs": [_one("question", "Where does Maria live?"), _one("context", "Maria Lopez lives in Oslo.")],
        },
    },
}
