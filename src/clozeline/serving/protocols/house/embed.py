"""Embeddings in the forms that clients request: fewer dimensions, base64, similarities, vectors of tokens.

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


EmbedResponse = list[list[float]] | list[list[list[float]]]
"""One vector for each text, or with `?level=tokens` for each token of each text. A single text also gets a list."""
_LEVELS = ("text", "tokens")
MAX_TOKEN_NUMBERS = 2**22
"""Largest number of numbers in an answer of `?level=tokens`: some 50 MB of JSON."""

EMBED_EXAMPLES = {
    "one text": Example("One text, one vector", {"inputs": "Sort a list in place."}),
    "several": Example(
        "Several texts; the end of a long text is cut off",
        {"inputs": ["Sort a list in place.", "Open a file for reading."], "truncate": True},
    ),
}


async def embed(call: Call, body: EmbedRequest) -> Response:
    """`?level=tokens` gives the last hidden states of each text, special tokens included and not normalized."""
    served = call.served(EMBEDDING, body.model)
    if _level(call, body) == "tokens":
        return await _of_tokens(call, served, body)
    reply = await embedded(
        call,
        served,
        texts_of(body.inputs),
        dimensions=body.dimensions,
        truncate=body.truncate,
        prompt_name=body.prompt_name,
    )
    return JsonResponse(encoded(reply.answers, body.dimensions, "float"), headers=reply.headers)


def _level(call: Call, body: EmbedRequest) -> str:
    """Return the level that the query names.

    Raises:
        ApiError: 422, it is unknown, or `dimensions` are given for vectors of tokens.
    """
    level = call.request.query_params.get("level", _LEVELS[0])
    if level not in _LEVELS or (level == "tokens" and body.dimensions is not None):
        raise problem(
            422,
            "unusable_level",
            "`level` cannot be used",
            given=level if level not in _LEVELS else "tokens beside `dimensions`",
            expected="`?level=text`, or `?level=tokens` without `dimensions`",
            do="correct the query of the URL",
            param="level",
        )
    return level


async def _of_tokens(call: Call, served: ServedModel[Embedder], body: EmbedRequest) -> Response:
    manifest, texts = served.model.manifest, texts_of(body.inputs)
    check_prompt(served.model, body.prompt_name)
    if not served.model.embeds_tokens:
        raise problem(
            422,
            "no_token_vectors",
            "the package of this model gives no vectors of tokens",
            given=f"model {served.identity.name}, exported by an older version",
            expected="a model with the output last_hidden_state",
            do="export it again, or leave `?level=tokens` out",
            param="level",
        )
    most_tokens = sum(min(len(text) + 2, manifest.max_length) for text in texts)
    if most_tokens * manifest.hidden_size > MAX_TOKEN_NUMBERS:
        raise problem(
            422,
            "answer_too_large",
            "the answer could be too large",
            given=f"texts of up to {most_tokens:,} tokens together, {manifest.hidden_size} numbers each",
            expected=f"at most {MAX_TOKEN_NUMBERS:,} numbers",
            do="send several requests",
            param="inputs",
        )
    reply = await call.ask(
        served,
        texts,
        lambda: served.model.embedding_tokens(texts, truncate=body.truncate, prompt_name=body.prompt_name),
    )
    return JsonResponse(reply.answers, headers=reply.headers)


async def embedded(
    call: Call,
    served: ServedModel[Embedder],
    texts: list[str],
    *,
    truncate: bool,
    dimensions: int | None = None,
    prompt_name: str | None = None,
) -> Reply[Embedding]:
    """Return a vector of length 1 for each text.

    Raises:
        ApiError: 422, the model has fewer `dimensions` or no such prompt; or what `Call.ask` raises.
    """
    check_dimensions(served.model, dimensions)
    check_prompt(served.model, prompt_name)
    return await call.ask(
        served, texts, lambda: served.model.embedding(texts, truncate=truncate, prompt_name=prompt_name)
    )


def check_prompt(encoder: Embedder, name: str | None) -> None:
    """Raise ApiError (422) if the model has no prompt of this name."""
    prompts = encoder.manifest.prompts
    if name is not None and name not in prompts:
        raise problem(
            422,
            "unknown_prompt",
            "the model has no prompt of this name",
            given=name[:80],
            expected=f"one of: {', '.join(prompts)}" if prompts else "null: the model has no prompts",
            do="correct `prompt_name`, or leave it out",
            param="prompt_name",
        )


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
