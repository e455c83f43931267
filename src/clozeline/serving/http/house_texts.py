"""Our own paths for tokens and vectors, /fill-mask, /embed and /complete; both as tensors.

Embeddings come in the forms that clients request: fewer dimensions, base64, similarities, vectors of tokens.

Shapes: H hidden, N texts, S sentences.
"""

import base64
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, Field
from starlette.responses import Response

from clozeline.inference import fields, open_model
from clozeline.inference.completer import Candidates, Completer, Completion, Decoding
from clozeline.inference.fields import StrictModel
from clozeline.inference.language import Embedder, Filled, OpenEncoder
from clozeline.serving import asking, errors, loading, models
from clozeline.serving.http import bodies
from clozeline.serving.http.operation import Call, JsonResponse, Operation
from clozeline.serving.http.tensors import AnswerKind, OutputName, TensorRequest, Tensors, Values

DEFAULT_NUM_CANDIDATES = 5

FILLING = models.Ability(OpenEncoder)
Embedding = npt.NDArray[np.float32]
EncodingFormat = Literal["float", "base64"]
# With or without a head for masks.
EMBEDDING = models.Ability(Embedder)
# One vector for each text, or with `?level=tokens` for each token of each text. A single text also gets a list.
EmbedResponse = list[list[float]] | list[list[list[float]]]
_LEVELS = ("text", "tokens")
# Largest number of numbers in an answer of `?level=tokens`: some 50 MB of JSON.
MAX_TOKEN_NUMBERS = 2**22
COMPLETING = models.Ability(Completer)
CutBeginning = Annotated[
    bool, Field(description="Cut off the beginning of a text that is too long, instead of refusing the text.")
]


class FillMaskRequest(StrictModel):
    inputs: bodies.Inputs
    parameters: fields.FillMaskParameters | None = None
    truncate: fields.Truncate = False
    model: fields.ModelName = None


Mask = list[Filled]
# Mirrors the request: one text, or a list of texts. A text with one mask gets its candidates, best first; a text with
# several masks gets a list of candidates for each mask.
FillMaskResponse = Mask | list[Mask] | list[Mask | list[Mask]]


async def fill_mask(call: Call, body: FillMaskRequest) -> Response:
    """Fill the masks of a text.

    Returns:
        Candidates for each mask, best first; one text or a list, as in the request.
    """
    served = call.served(FILLING, body.model)
    texts = served.model.with_own_masks(bodies.texts_of(body.inputs))
    asked = body.parameters or fields.FillMaskParameters()
    top_k = asked.top_k or DEFAULT_NUM_CANDIDATES
    question = partial(served.model.filling, texts, top_k=top_k, targets=asked.targets, truncate=body.truncate)
    reply = await call.converse(served, texts, open_model.alone(question))
    call.confident(served, reply.answers)
    best = [words[0].token_str for of_text in reply.answers for words in of_text]
    headers = call.scorable(served, reply.headers, best)
    shaped = [masks[0] if len(masks) == 1 else masks for masks in reply.answers]
    return JsonResponse(shaped[0] if isinstance(body.inputs, str) else shaped, headers=headers)


FILL_MASK = Operation(path="/fill-mask", answer=fill_mask, result=FillMaskResponse, ability=FILLING)


class EmbedRequest(StrictModel):
    inputs: bodies.Inputs
    normalize: Literal[True] = Field(
        default=True, description="Always true: the graph normalizes every vector to length 1."
    )
    dimensions: bodies.Dimensions = None
    encoding_format: Literal["float"] = "float"
    truncate: fields.Truncate = False
    truncation_direction: bodies.TruncationDirection = None
    prompt_name: bodies.PromptName = None
    model: fields.ModelName = None


async def embed(call: Call, body: EmbedRequest) -> Response:
    """Embed texts as vectors of length 1.

    `?level=tokens` gives the last hidden states of each text, special tokens included and not normalized.

    Returns:
        One vector for each text.
    """
    served = call.served(EMBEDDING, body.model)
    if _level(call, body) == "tokens":
        return await _of_tokens(call, served, body)
    texts = bodies.texts_of(body.inputs)
    reply = await embedded(
        call, served, texts, dimensions=body.dimensions, truncate=body.truncate, prompt_name=body.prompt_name
    )
    return JsonResponse(encoded(reply.answers, body.dimensions, "float"), headers=reply.headers)


def _level(call: Call, body: EmbedRequest) -> str:
    """Return the level that the query names.

    Raises:
        ApiError: 422, it is unknown, or `dimensions` are given for vectors of tokens.
    """
    level = call.request.query_params.get("level", _LEVELS[0])
    if level not in _LEVELS or (level == "tokens" and body.dimensions is not None):
        raise errors.refused(
            "unusable_level",
            given=level if level not in _LEVELS else "tokens beside `dimensions`",
            expected="`?level=text`, or `?level=tokens` without `dimensions`",
            param="level",
        )
    return level


async def _of_tokens(call: Call, served: loading.ServedModel[Embedder], body: EmbedRequest) -> Response:
    manifest, texts = served.model.manifest, bodies.texts_of(body.inputs)
    check_prompt(served.model, body.prompt_name)
    if not served.model.embeds_tokens:
        raise errors.refused(
            "no_token_vectors",
            given=f"model {served.identity.name}, exported by an older version",
            expected="a model with the output last_hidden_state",
            param="level",
        )
    most_tokens = sum(min(len(text) + 2, manifest.max_length) for text in texts)
    if most_tokens * manifest.hidden_size > MAX_TOKEN_NUMBERS:
        raise errors.refused(
            "answer_too_large",
            given=f"texts of up to {most_tokens:,} tokens together, {manifest.hidden_size} numbers each",
            expected=f"at most {MAX_TOKEN_NUMBERS:,} numbers",
            do="send several requests",
            param="inputs",
        )
    question = partial(served.model.embedding_tokens, texts, truncate=body.truncate, prompt_name=body.prompt_name)
    reply = await call.converse(served, texts, open_model.alone(question))
    return JsonResponse(reply.answers, headers=reply.headers)


async def embedded(
    call: Call,
    served: loading.ServedModel[Embedder],
    texts: list[str],
    *,
    truncate: bool,
    dimensions: int | None = None,
    prompt_name: str | None = None,
) -> asking.Reply[list[Embedding]]:
    """Return a vector of length 1 for each text.

    Raises:
        ApiError: 422, the model has fewer `dimensions` or no such prompt; or what `Call.converse` raises.
    """
    hidden_size = served.model.manifest.hidden_size
    if dimensions is not None and dimensions > hidden_size:
        raise errors.refused(
            "too_many_dimensions", given=dimensions, expected=f"at most {hidden_size}", param="dimensions"
        )
    check_prompt(served.model, prompt_name)
    question = partial(served.model.embedding, texts, truncate=truncate, prompt_name=prompt_name)
    return await call.converse(served, texts, open_model.alone(question))


def check_prompt(encoder: Embedder, name: str | None) -> None:
    """Raise ApiError (422) if the model has no prompt of this name."""
    prompts = encoder.manifest.prompts
    if name is not None and name not in prompts:
        raise errors.refused(
            "unknown_prompt",
            given=name[:80],
            expected=f"one of: {', '.join(prompts)}" if prompts else "null: the model has no prompts",
            param="prompt_name",
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


class CompleteRequest(StrictModel):
    inputs: bodies.Inputs
    parameters: fields.CompleteParameters | None = None
    truncate: CutBeginning = False
    model: fields.ModelName = None


class Generated(BaseModel):
    generated_text: str
    finish_reason: str = Field(description="`stop`: the text ended. `length`: no more tokens were allowed.")
    num_tokens: int = Field(description="Number of new tokens.")


# One continuation for one text, a list for a list.
CompleteResponse = Generated | list[Generated]


async def complete(call: Call, body: CompleteRequest) -> Response:
    """Continue a text.

    Returns:
        The continuation; one text or a list, as in the request.
    """
    served = call.served(COMPLETING, body.model)
    texts, wanted = bodies.texts_of(body.inputs), body.parameters or fields.CompleteParameters()
    reply = await continued(call, served, texts, _decoding(wanted), truncate=body.truncate)
    begins = texts if wanted.return_full_text else [""] * len(texts)
    shaped = [
        {"generated_text": begin + one.text, "finish_reason": one.finish_reason, "num_tokens": len(one.tokens)}
        for begin, one in zip(begins, reply.answers, strict=True)
    ]
    return JsonResponse(shaped[0] if isinstance(body.inputs, str) else shaped, headers=reply.headers)


def _decoding(asked: fields.CompleteParameters) -> Decoding:
    drawn = 1.0 if asked.do_sample else 0.0
    temperature = 0.0 if asked.do_sample is False else (drawn if asked.temperature is None else asked.temperature)
    return Decoding(asked.max_new_tokens, temperature, asked.top_p, asked.seed, tuple(asked.stop))


async def continued(
    call: Call, served: loading.ServedModel[Completer], texts: Sequence[str], decoding: Decoding, *, truncate: bool
) -> asking.Reply[list[Completion]]:
    """Return the continuation of each text. Raises what `Call.converse` raises."""
    reply = await call.converse(served, texts, served.model.completing(texts, decoding, truncate=truncate))
    call.confident(served, reply.answers)
    return reply


COMPLETE = Operation(path="/complete", answer=complete, result=CompleteResponse, ability=COMPLETING)


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


def _filling(encoder: OpenEncoder, asked: TensorRequest) -> open_model.AnyQuestion:
    texts = encoder.with_own_masks(asked.given)
    top_k = asked.parameters.top_k or DEFAULT_NUM_CANDIDATES
    return encoder.filling(texts, top_k=top_k, truncate=asked.parameters.truncate)


def _of_only_mask(encoder: OpenEncoder, number: int, masks: list[list[Filled]]) -> list[tuple[str, float]]:
    if len(masks) != 1:
        raise errors.refused(
            "several_masks",
            given=f"{len(masks)} masks in text {number}",
            expected="1 mask in each text",
            param=f"inputs[0].data[{number}]",
        )
    return [(word.token_str, word.score) for word in masks[0]]


def _following(completer: Completer, asked: TensorRequest) -> open_model.AnyQuestion:
    top_k = asked.parameters.top_k or DEFAULT_NUM_CANDIDATES
    return completer.following(asked.given, top_k=top_k, truncate=asked.parameters.truncate)


def _next_token(completer: Completer, number: int, candidates: Candidates) -> list[tuple[str, float]]:
    return [(completer.tokenizer.token_text(token_id), score) for token_id, score in candidates]


MASKS = AnswerKind(
    partial(_encoded, question=_filling, best=_of_only_mask),
    outputs=("embedding", "token", "score"),
    parameters={"top_k", "truncate"},
    unasked=("embedding",),
    house=FILL_MASK,
)
NEXT_TOKENS = replace(MASKS, tensors=partial(_encoded, question=_following, best=_next_token), house=COMPLETE)
EMBEDDINGS = AnswerKind(MASKS.tensors, outputs=("embedding",), parameters={"truncate"})
