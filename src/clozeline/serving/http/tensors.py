"""Tensors of the Open Inference Protocol: in JSON, or as raw bytes after the JSON, as Triton's clients send them.

A row for each kind of model says which tensors it answers. Strings are BYTES: in the raw form, 4 bytes with the length,
little-endian, precede each string.
"""

import math
import struct
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
import orjson
from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag
from starlette.datastructures import Headers
from starlette.responses import Response

from clozeline.inference import answerer, fields, language, open_model, package
from clozeline.inference.completer import Candidates, Completer
from clozeline.inference.fields import StrictModel
from clozeline.records.package import Manifest
from clozeline.serving import errors, loading
from clozeline.serving.http import bodies, house_labels, house_texts, operation

HEADER_LENGTH = "inference-header-content-length"
InputName = Literal["text", "text_pair", "question", "context"]
Datatype = Literal["FP32", "INT64", "BYTES"]
Values = npt.NDArray[np.float32] | npt.NDArray[np.int64] | list[list[str]]
_COUNT = struct.Struct("<I")
_OneText = Annotated[list[fields.Text], Field(min_length=1, max_length=1)]
_Strings = Annotated[
    Annotated[Annotated[list[fields.Text], Field(min_length=1, max_length=bodies.MAX_TEXTS)], Tag(bodies.FLAT_TAG)]
    | Annotated[Annotated[list[_OneText], Field(min_length=1, max_length=bodies.MAX_TEXTS)], Tag(bodies.NESTED_TAG)],
    Discriminator(
        bodies.nesting, custom_error_type="data_type", custom_error_message="a list of texts, or of lists of one text"
    ),
]
# Datatype and wire format by the kind of the numpy array.
_WIRE_TYPES: Mapping[str, tuple[Datatype, str]] = {"f": ("FP32", "<f4"), "i": ("INT64", "<i8")}
OutputName = Literal["embedding", "token", "score", "label", "entities", "answer", "start", "end"]
# Datatypes of the outputs that are not BYTES.
NUMBERS: Mapping[OutputName, Datatype] = {"embedding": "FP32", "score": "FP32", "start": "INT64", "end": "INT64"}
# Outputs, and headers that name the model.
Tensors = tuple[dict[OutputName, Values], dict[str, str]]
# Padding for a context with fewer answers than another of the same request.
_NO_ANSWER = answerer.Answer("", 0.0, 0, 0)
_OF_ALL = frozenset({"binary_data_output"})


class InputParameters(StrictModel):
    binary_data_size: Annotated[
        int | None,
        Field(ge=0, description="Number of bytes after the JSON that hold the texts, instead of `data`."),
        fields.WHOLE,
    ] = None


class InputTensor(StrictModel):
    """Texts are in `data`, or in `binary_data_size` bytes after the JSON."""

    model_config = ConfigDict(
        json_schema_extra={
            "anyOf": [
                {"required": ["data"], "properties": {"data": {"type": "array"}}},
                {
                    "required": ["parameters"],
                    "properties": {"parameters": {"type": "object", "required": ["binary_data_size"]}},
                },
            ]
        }
    )

    name: InputName
    shape: Annotated[list[Annotated[int, Field(ge=1), fields.WHOLE]], Field(min_length=1, max_length=2)]
    datatype: Literal["BYTES"]
    parameters: InputParameters = InputParameters()
    data: _Strings | None = Field(default=None, description="The texts, flat or in the shape [texts, 1].")


class Tensor(BaseModel):
    """Tensor of an answer: `data` in row-major order, or bytes after the JSON."""

    name: str
    shape: list[int]
    datatype: Datatype
    parameters: dict[str, int] | None = None
    data: list[float] | list[int] | list[str] | None = None


@dataclass(frozen=True, slots=True)
class OutputTensor:
    name: str
    values: Values
    is_binary: bool


def read_tensors(headers: Headers, raw: bytes) -> int:
    """Return the length of the JSON in `raw`. Any content type will do, since these clients send none.

    Raises:
        ApiError: 415, the body is compressed or not UTF-8; 422, the given length is not a number, or exceeds the body.
    """
    bodies.check_encoding(headers)
    length = headers.get(HEADER_LENGTH, str(len(raw)))
    if not length.isdecimal() or int(length) > len(raw):
        raise _unreadable(
            f"{HEADER_LENGTH}: {length}, for a body of {len(raw)} bytes", "the length of the JSON in bytes"
        )
    return int(length)


def strings_of(inputs: Sequence[InputTensor], behind_json: bytes) -> list[list[str]]:
    """Return the strings of each input. Raw bytes follow the JSON in the order of the inputs.

    Raises:
        ApiError: 422, a size or a shape does not fit the data, or the strings are not UTF-8.
    """
    sizes_bytes = [tensor.parameters.binary_data_size or 0 for tensor in inputs]
    if sum(sizes_bytes) != len(behind_json):
        raise _unreadable(
            f"{len(behind_json)} bytes after the JSON", f"{sum(sizes_bytes)}, the sum of `binary_data_size`"
        )
    ends = list(accumulate(sizes_bytes))
    return [
        _strings(number, tensor, behind_json[end - size : end])
        for number, (tensor, size, end) in enumerate(zip(inputs, sizes_bytes, ends, strict=True))
    ]


def _strings(number: int, tensor: InputTensor, raw: bytes) -> list[str]:
    is_raw = tensor.parameters.binary_data_size is not None
    if is_raw and tensor.data is not None:
        raise _unreadable("both `data` and `parameters.binary_data_size`", "one of them", number)
    if not is_raw and tensor.data is None:
        raise _unreadable("neither `data` nor `parameters.binary_data_size`", "one of them", number)
    if is_raw:
        texts = _unpacked(number, raw)
    else:
        texts = [text for row in tensor.data or [] for text in ([row] if isinstance(row, str) else row)]
    if len(texts) != math.prod(tensor.shape) or tensor.shape[1:] not in ([], [1]):
        raise _unreadable(
            f"shape {tensor.shape} with {len(texts)} strings", "shape [N] or [N, 1] with N strings", number
        )
    return texts


def answer(content: dict[str, Any], outputs: Sequence[OutputTensor], headers: dict[str, str]) -> Response:
    """Return `content` with its outputs. Binary ones follow as raw bytes after the JSON."""
    tensors, raws = [], []
    for output in outputs:
        tensor, raw = _entry(output)
        tensors.append(tensor)
        raws.append(raw)
    whole = content | {"outputs": tensors}
    if not any(output.is_binary for output in outputs):
        return operation.JsonResponse(whole, headers=headers)
    head = orjson.dumps(whole, option=orjson.OPT_SERIALIZE_NUMPY)
    return Response(
        b"".join([head, *raws]),
        media_type="application/octet-stream",
        headers=headers | {HEADER_LENGTH: str(len(head))},
    )


def _entry(output: OutputTensor) -> tuple[dict[str, Any], bytes]:
    if isinstance(output.values, list):
        flat = [text for row in output.values for text in row]
        shape = [len(output.values), len(output.values[0])]
        described: dict[str, Any] = {"name": output.name, "shape": shape, "datatype": "BYTES"}
        raw = b"".join(_COUNT.pack(len(one)) + one for one in (text.encode() for text in flat))
        return (described | _size(raw), raw) if output.is_binary else (described | {"data": flat}, b"")
    datatype, wire_type = _WIRE_TYPES[output.values.dtype.kind]
    described = {"name": output.name, "shape": list(output.values.shape), "datatype": datatype}
    if output.is_binary:
        raw = output.values.astype(wire_type, copy=False).tobytes()
        return described | _size(raw), raw
    return described | {"data": np.ascontiguousarray(output.values.ravel())}, b""


def _size(raw: bytes) -> dict[str, Any]:
    return {"parameters": {"binary_data_size": len(raw)}}


def _unpacked(number: int, raw: bytes) -> list[str]:
    texts, start = [], 0
    while start < len(raw):
        begin = start + _COUNT.size
        length = _COUNT.unpack(raw[start:begin])[0] if begin <= len(raw) else len(raw)
        start = begin + length
        if start > len(raw):
            raise _unreadable(
                "a string that runs past the end of its tensor",
                "strings that follow their lengths, 4 bytes little-endian",
                number,
            )
        texts.append(_decoded(number, raw[begin:start]))
    return texts


def _decoded(number: int, raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise _unreadable(
            f"bytes that are not UTF-8: {raw[error.start : error.end]!r}", "text in UTF-8", number
        ) from error


def _unreadable(given: str, expected: str, number: int | None = None) -> errors.ApiError:
    """Return a 422 about input `number`; None: about all inputs."""
    return errors.refused(
        "unreadable_tensor", given=given, expected=expected, param="inputs" if number is None else f"inputs[{number}]"
    )


class InferParameters(fields.TagReading, fields.AnswerSearch):
    """Parameters for tags and answers are those of /tag and /answer."""

    binary_data_output: bool = False
    top_k: fields.TopK | None = Field(
        default=None,
        description="Number of candidates for the mask or the next token (null: 5), labels (all) or answers (1).",
    )
    truncate: fields.Truncate = False


@dataclass(frozen=True, slots=True)
class TensorRequest:
    """A checked request: its model has the named inputs, outputs and parameters."""

    call: operation.Call
    served: loading.ServedModel[Any]
    given: Sequence[Any]  # texts, or pairs of texts
    outputs: Sequence[OutputName]
    parameters: InferParameters


async def _encoded(
    asked: TensorRequest,
    question: Callable[[Any, TensorRequest], open_model.AnyQuestion],
    best: Callable[[Any, int, Any], list[tuple[str, float]]],
) -> Tensors:
    """Return embeddings, the likeliest tokens of one place in each text, or both.

    `question` asks the model for these tokens; `best` returns tokens and scores, best first, of the model, the index of
    a text and its answer.
    """
    model, texts, wanted = asked.served.model, asked.given, asked.outputs
    predicts = not {"token", "score"}.isdisjoint(wanted)

    def asking() -> open_model.Dialogue[list[list[Any]]]:
        embedding = [model.embedding(texts, truncate=asked.parameters.truncate)] if "embedding" in wanted else []
        answers: list[list[Any]] = yield open_model.Round([*embedding, *([question(model, asked)] if predicts else [])])
        return answers

    reply = await asked.call.converse(asked.served, texts, asking())
    values: dict[OutputName, Values] = {}
    if "embedding" in wanted:
        values["embedding"] = np.stack(reply.answers[0])
    if predicts:
        words_N = [best(model, *numbered) for numbered in enumerate(reply.answers[-1])]
        asked.call.service.metrics.confident(asked.served.identity.name, (words[0][1] for words in words_N))
        values["token"] = [[token for token, _ in words] for words in words_N]
        values["score"] = np.array([[score for _, score in words] for words in words_N], dtype=np.float32)
    return values, reply.headers


def _filling(encoder: language.OpenEncoder, asked: TensorRequest) -> open_model.AnyQuestion:
    texts = encoder.with_own_masks(asked.given)
    top_k = asked.parameters.top_k or house_texts.DEFAULT_NUM_CANDIDATES
    return encoder.filling(texts, top_k=top_k, truncate=asked.parameters.truncate)


def _of_only_mask(
    encoder: language.OpenEncoder, number: int, masks: list[list[language.Filled]]
) -> list[tuple[str, float]]:
    if len(masks) != 1:
        raise errors.refused(
            "several_masks",
            given=f"{len(masks)} masks in text {number}",
            expected="1 mask in each text",
            param=f"inputs[0].data[{number}]",
        )
    return [(word.token_str, word.score) for word in masks[0]]


def _following(completer: Completer, asked: TensorRequest) -> open_model.AnyQuestion:
    top_k = asked.parameters.top_k or house_texts.DEFAULT_NUM_CANDIDATES
    return completer.following(asked.given, top_k=top_k, truncate=asked.parameters.truncate)


def _next_token(completer: Completer, number: int, candidates: Candidates) -> list[tuple[str, float]]:
    return [(completer.tokenizer.token_text(token_id), score) for token_id, score in candidates]


async def _labelled(asked: TensorRequest) -> Tensors:
    """Return the labels of texts or pairs of texts, best first."""
    top_k, truncate = asked.parameters.top_k, asked.parameters.truncate
    reply = await house_labels.labelled(asked.call, asked.served, asked.given, top_k=top_k, truncate=truncate)
    score_NK = np.array([[label.score for label in labels] for labels in reply.answers], dtype=np.float32)
    return {"label": [[one.label for one in labels] for labels in reply.answers], "score": score_NK}, reply.headers


async def _tagged(asked: TensorRequest) -> Tensors:
    """Return the entities of each text as a JSON list, because their number differs between texts."""
    reply = await house_labels.tagged(asked.call, asked.served, asked.given, asked.parameters)
    return {"entities": [[orjson.dumps(of_text).decode()] for of_text in reply.answers]}, reply.headers


async def _answered(asked: TensorRequest) -> Tensors:
    """Return the answers to each question, best first."""
    top_k, search = asked.parameters.top_k or 1, asked.parameters
    reply = await house_labels.answered(asked.call, asked.served, asked.given, top_k, search)
    most = max(map(len, reply.answers))
    rows = [[*answers, *[_NO_ANSWER] * (most - len(answers))] for answers in reply.answers]
    return {
        "answer": [[one.answer for one in row] for row in rows],
        "score": np.array([[one.score for one in row] for row in rows], dtype=np.float32),
        "start": np.array([[one.start for one in row] for row in rows], dtype=np.int64),
        "end": np.array([[one.end for one in row] for row in rows], dtype=np.int64),
    }, reply.headers


@dataclass(frozen=True, slots=True)
class AnswerKind:
    """Answers of one kind of model as tensors."""

    tensors: Callable[[TensorRequest], Awaitable[Tensors]]
    outputs: tuple[OutputName, ...]
    parameters: frozenset[str]  # names of the parameters that `tensors` reads
    unasked: tuple[OutputName, ...] = ()  # default outputs if the request names none; empty: all


MASKS = AnswerKind(
    partial(_encoded, question=_filling, best=_of_only_mask),
    outputs=("embedding", "token", "score"),
    parameters=_OF_ALL | {"top_k", "truncate"},
    unasked=("embedding",),
)
NEXT_TOKENS = replace(MASKS, tensors=partial(_encoded, question=_following, best=_next_token))
EMBEDDINGS = replace(MASKS, outputs=("embedding",), parameters=_OF_ALL | {"truncate"})
LABELS = AnswerKind(_labelled, ("label", "score"), _OF_ALL | {"top_k", "truncate"})
ENTITIES = AnswerKind(_tagged, ("entities",), _OF_ALL | set(fields.TagReading.model_fields))
ANSWERS = AnswerKind(
    _answered, ("answer", "score", "start", "end"), _OF_ALL | {"top_k"} | set(fields.AnswerSearch.model_fields)
)


def answers_of(manifest: Manifest) -> AnswerKind:
    """Return the answers of the models of a manifest's task."""
    kind: AnswerKind = package.resolved(package.kind_of(manifest.task).answers)
    return kind
