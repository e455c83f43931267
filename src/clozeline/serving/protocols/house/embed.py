"""Embeddings in the forms that clients request: fewer dimensions, base64, similarities.

H hidden, S sentences.
"""

import base64
from collections.abc import Sequence
from typing import Annotated, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field
from starlette.responses import Response

from clozeline.inference.embedder import Embedder
from clozeline.serving.errors import problem
from clozeline.serving.models.catalogue import Ability
from clozeline.serving.protocols.dataframes import Params, Records, Sent
from clozeline.serving.protocols.fields import (
    Dimensions,
    Inputs,
    ModelName,
    PromptName,
    RequestBody,
    Truncate,
    TruncationDirection,
    texts_of,
)
from clozeline.serving.protocols.operation import Call, Example, JsonResponse
from clozeline.serving.scheduling.asking import Reply
from clozeline.serving.scheduling.work import ServedModel

Embedding = npt.NDArray[np.float32]
EncodingFormat = Literal["float", "base64"]

EMBEDDING = Ability(Embedder)
"""With or without a head for masks."""


class EmbedRequest(RequestBody):
    inputs: Inputs
    normalize: Annotated[
        Literal[True], Field(description="Always true: the graph normalizes every vector to length 1.")
    ] = True
    dimensions: Dimensions = None
    encoding_format: Literal["float"] = "float"
    truncate: Truncate = False
    truncation_direction: TruncationDirection = None
    prompt_name: PromptName = None
    model: ModelName = None


EmbedResponse = list[list[float]]
"""One vector for each text. A single text also gets a list of vectors."""

EMBED_EXAMPLES = {
    "one text": Example("One text, one vector", {"inputs": "Sort a list in place."}),
    "several": Example(
        "Several texts; the end of a long text is cut off",
        {"inputs": ["Sort a list in place.", "Open a file for reading."], "truncate": True},
    ),
}


async def embed(call: Call, body: EmbedRequest) -> Response:
    served = call.served(EMBEDDING, body.model)
    reply = await embedded(call, served, texts_of(body.inputs), dimensions=body.dimensions, truncate=body.truncate)
    return JsonResponse(encoded(reply.answers, body.dimensions, "float"), headers=reply.headers)


async def embedded(
    call: Call, served: ServedModel[Embedder], texts: list[str], *, truncate: bool, dimensions: int | None = None
) -> Reply[Embedding]:
    """Return a vector of length 1 for each text.

    Raises:
        ApiError: 422, the model has fewer `dimensions`; or what `Call.ask` raises.
    """
    check_dimensions(served.model, dimensions)
    return await call.ask(served, texts, lambda: served.model.embedding(texts, truncate=truncate))


def check_dimensions(encoder: Embedder, dimensions: int | None) -> None:
    """Raise ApiError (422) if the model has fewer dimensions."""
    hidden_size = encoder.manifest.hidden_size
    if dimensions is not None and dimensions > hidden_size:
        raise problem(
            422,
            "too_many_dimensions",
            "the vectors of this model have fewer dimensions",
            given=dimensions,
            expected=f"at most {hidden_size}",
            do="ask for fewer dimensions, or leave `dimensions` out",
            param="dimensions",
        )


def encoded(
    embeddings: Sequence[Embedding], dimensions: int | None, encoding_format: EncodingFormat
) -> list[Embedding | str]:
    """Return each vector in the requested format; base64 holds little-endian float32."""
    cut = [np.ascontiguousarray(_cut(embedding_H, dimensions)) for embedding_H in embeddings]
    if encoding_format == "float":
        return list(cut)
    return [base64.b64encode(vector.astype("<f4", copy=False).tobytes()).decode("ascii") for vector in cut]


def similarities(embeddings: Sequence[Embedding]) -> list[float]:
    """Return the cosine of the first unit vector with each of the others."""
    source_H, *sentences = embeddings
    cosines_S = np.stack(sentences).astype(np.float64) @ source_H.astype(np.float64)
    return [float(cosine) for cosine in np.clip(cosines_S, -1, 1)]


def _cut(embedding_H: Embedding, dimensions: int | None) -> Embedding:
    if dimensions is None or dimensions == len(embedding_H):
        return embedding_H
    first = embedding_H[:dimensions]
    length = np.linalg.norm(first)
    return first / length if length else first


async def records(call: Call, name: str, sent: Sent, params: Params) -> Records:
    """Answer like MLflow's scoring server."""
    reply = await embedded(call, call.served(EMBEDDING, name), sent.texts(), truncate=params.truncate)
    return [{"embedding": embedding_H} for embedding_H in reply.answers], reply.headers
