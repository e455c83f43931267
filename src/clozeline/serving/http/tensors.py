"""Tensors of the Open Inference Protocol: in JSON, or as raw bytes after the JSON, as Triton's clients send them.

Strings are BYTES: in the raw form, 4 bytes with the length,
little-endian, precede each string.
"""

import math
import struct
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
import orjson
from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag
from starlette.datastructures import Headers
from starlette.responses import Response

from clozeline.inference import fields, package
from clozeline.inference.fields import StrictModel
from clozeline.records.package import Manifest
from clozeline.serving import errors, loading
from clozeline.serving.http import bodies, operation

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


def read_tensors(headers: Headers, raw: bytes) -> int:
    """Return the length of the JSON in `raw`. Any content type will do, since these clients send none.

    Raises:
        ApiError: 415, the body is compressed or not UTF-8; 422, the given length is not a number, or exceeds the body.
    """
    bodies.check_encoding(headers)
    length = headers.get(HEADER_LENGTH, str(len(raw)))
    if not length.isdecimal() or int(length) > len(raw):
        raise _unreadable(f"{HEADER_LENGTH}: {length}, for a body of {len(raw)} bytes", "the bytes of the JSON")
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
        raise _unreadable(f"shape {tensor.shape} of {len(texts)} strings", "shape [N] or [N, 1] with N strings", number)
    return texts


def answer(
    content: dict[str, Any], outputs: Mapping[OutputName, Values], binary: Collection[str], headers: dict[str, str]
) -> Response:
    """Return `content` with its outputs. Those of the names `binary` follow as raw bytes after the JSON."""
    entries = [_entry(name, values, name in binary) for name, values in outputs.items()]
    whole = content | {"outputs": [tensor for tensor, _ in entries]}
    if not binary:
        return operation.JsonResponse(whole, headers=headers)
    head = orjson.dumps(whole, option=orjson.OPT_SERIALIZE_NUMPY)
    return Response(
        b"".join([head, *(raw for _, raw in entries)]),
        media_type="application/octet-stream",
        headers=headers | {HEADER_LENGTH: str(len(head))},
    )


def _entry(name: str, values: Values, is_binary: bool) -> tuple[dict[str, Any], bytes]:
    if isinstance(values, list):
        flat = [text for row in values for text in row]
        described: dict[str, Any] = {"name": name, "shape": [len(values), len(values[0])], "datatype": "BYTES"}
        raw = b"".join(_COUNT.pack(len(one)) + one for one in (text.encode() for text in flat))
        return (described | _size(raw), raw) if is_binary else (described | {"data": flat}, b"")
    datatype, wire_type = _WIRE_TYPES[values.dtype.kind]
    described = {"name": name, "shape": list(values.shape), "datatype": datatype}
    if is_binary:
        raw = values.astype(wire_type, copy=False).tobytes()
        return described | _size(raw), raw
    return described | {"data": np.ascontiguousarray(values.ravel())}, b""


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
        raise _unreadable(f"not UTF-8: {raw[error.start : error.end]!r}", "text in UTF-8", number) from error


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


@dataclass(frozen=True, slots=True)
class AnswerKind:
    """Answers of one kind of model: as tensors, and at a path of our own."""

    tensors: Callable[[TensorRequest], Awaitable[Tensors]]
    outputs: tuple[OutputName, ...]
    parameters: Collection[str]  # names of the parameters that `tensors` reads
    unasked: tuple[OutputName, ...] = ()  # default outputs if the request names none; empty: all
    house: operation.Operation | None = None  # None: another protocol has its path


def answers_of(manifest: Manifest) -> AnswerKind:
    """Return the answers of the models of a manifest's task."""
    kind: AnswerKind = package.resolved(package.kind_of(manifest.task).answers)
    return kind
