"""Tensors of the Open Inference Protocol: in JSON, or as Triton's clients send them, raw bytes behind the JSON.

Strings are BYTES: in the raw form each has its length before it, 4 bytes, little-endian.
"""

import struct
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
import orjson
from fastapi import Request, Response
from fastapi.routing import APIRoute
from pydantic import BaseModel, Field

from clozeline.serving.bodies import JsonRequest, parse_json
from clozeline.serving.errors import ApiError, problem
from clozeline.serving.responses import JsonResponse
from clozeline.serving.schemas import RequestBody

HEADER_LENGTH = "inference-header-content-length"
_COUNT = struct.Struct("<I")


class InputParameters(RequestBody):
    binary_data_size: Annotated[int | None, Field(ge=0, description="Bytes behind the JSON, instead of `data`.")] = None


class InputTensor(RequestBody):
    name: Literal["text"]
    shape: Annotated[list[Annotated[int, Field(ge=1)]], Field(min_length=1, max_length=2)]
    datatype: Literal["BYTES"]
    parameters: InputParameters = InputParameters()
    data: Annotated[
        list[str] | list[list[str]] | None, Field(description="The texts, flat or in the shape [texts, 1].")
    ] = None


class Tensor(BaseModel):
    """Of an answer: `data` row by row, or so many bytes behind the JSON."""

    name: str
    shape: list[int]
    datatype: Literal["FP32", "BYTES"]
    parameters: dict[str, int] | None = None
    data: list[float] | list[str] | None = None


@dataclass(frozen=True, slots=True)
class OutputTensor:
    name: str
    values: npt.NDArray[np.float32] | list[list[str]]
    is_binary: bool


class TensorRoute(APIRoute):
    """Reads JSON whatever its content type is said to be: these clients send none. What lies behind it comes along."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handle_tensors(request: Request) -> Response:
            return await handle(await _parsed(request) if self.body_field is not None else request)

        return handle_tensors


async def _parsed(request: Request) -> Request:
    raw = await request.body()
    length = request.headers.get(HEADER_LENGTH, str(len(raw)))
    if not length.isdecimal() or int(length) > len(raw):
        raise _unreadable(
            f"{HEADER_LENGTH}: {length}, of a body of {len(raw)} bytes", "the length of the JSON in bytes"
        )
    headers = [header for header in request.scope["headers"] if header[0] != b"content-type"]
    scope = {**request.scope, "headers": [*headers, (b"content-type", b"application/json")]}
    parsed = JsonRequest(scope, request.receive)
    parsed.raw = raw[: int(length)]
    parsed.content = parse_json(parsed.raw)
    parsed.state.behind_json = raw[int(length) :]
    return parsed


def texts_of(tensor: InputTensor, behind_json: bytes) -> list[str]:
    """The strings of an input.

    Raises:
        ApiError: 422, they are not as many as its shape says, or not UTF-8.
    """
    size_bytes = tensor.parameters.binary_data_size
    if size_bytes is not None:
        if tensor.data is not None or size_bytes != len(behind_json):
            raise _unreadable(f"{len(behind_json)} bytes behind the JSON", f"{size_bytes} bytes, and no `data`")
        texts = _unpacked(behind_json)
    else:
        rows = tensor.data or []
        texts = [text for row in rows for text in ([row] if isinstance(row, str) else row)]
    count = int(np.prod(tensor.shape))
    if len(texts) != count or tensor.shape[1:] not in ([], [1]):
        raise _unreadable(
            f"shape {tensor.shape}, and {len(texts)} strings", "shape [texts] or [texts, 1], and as many strings"
        )
    return texts


def answer(content: dict[str, Any], outputs: Sequence[OutputTensor], headers: dict[str, str]) -> Response:
    """`content` with its outputs, those that were asked for so as raw bytes behind the JSON."""
    tensors, raws = [], []
    for output in outputs:
        tensor, raw = _told(output)
        tensors.append(tensor)
        raws.append(raw)
    told = content | {"outputs": tensors}
    if not any(output.is_binary for output in outputs):
        return JsonResponse(told, headers=headers)
    head = orjson.dumps(told, option=orjson.OPT_SERIALIZE_NUMPY)
    return Response(
        b"".join([head, *raws]),
        media_type="application/octet-stream",
        headers=headers | {HEADER_LENGTH: str(len(head))},
    )


def _told(output: OutputTensor) -> tuple[dict[str, Any], bytes]:
    if isinstance(output.values, list):
        flat = [text for row in output.values for text in row]
        shape = [len(output.values), len(output.values[0])]
        told: dict[str, Any] = {"name": output.name, "shape": shape, "datatype": "BYTES"}
        raw = b"".join(_COUNT.pack(len(one)) + one for one in (text.encode() for text in flat))
        return (told | _size(raw), raw) if output.is_binary else (told | {"data": flat}, b"")
    told = {"name": output.name, "shape": list(output.values.shape), "datatype": "FP32"}
    if output.is_binary:
        raw = output.values.astype("<f4", copy=False).tobytes()
        return told | _size(raw), raw
    return told | {"data": np.ascontiguousarray(output.values.ravel())}, b""


def _size(raw: bytes) -> dict[str, Any]:
    return {"parameters": {"binary_data_size": len(raw)}}


def _unpacked(raw: bytes) -> list[str]:
    texts, start = [], 0
    while start < len(raw):
        begin = start + _COUNT.size
        length = _COUNT.unpack(raw[start:begin])[0] if begin <= len(raw) else len(raw)
        start = begin + length
        if start > len(raw):
            raise _unreadable(
                "a string that ends behind the body", "each string behind its length, 4 bytes little-endian"
            )
        texts.append(_decoded(raw[begin:start]))
    return texts


def _decoded(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise _unreadable(f"bytes that are no UTF-8: {raw[error.start : error.end]!r}", "text in UTF-8") from error


def _unreadable(given: str, expected: str) -> ApiError:
    return problem(
        422,
        "unreadable_tensor",
        "the tensor cannot be read",
        given=given,
        expected=expected,
        do="compare the request with the example at /docs",
        param="inputs[0]",
    )
