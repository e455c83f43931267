"""Kinds of answers in other protocols: one row per kind of model, as in `inference/package.py`.

A row says which records MLflow's scoring server answers, and which tensors the Open Inference Protocol answers.

Shapes: N texts, H hidden, K candidates, labels or answers: `embedding` is [N, H], `entities` [N, 1], all others [N, K].
"""

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
import orjson
from pydantic import Field

from clozeline.inference import fields
from clozeline.inference.answerer import Answer
from clozeline.inference.completer import Candidates, Completer, Decoding
from clozeline.inference.language import Filled, OpenEncoder
from clozeline.inference.open_model import AnyQuestion
from clozeline.inference.package import kind_of, resolved
from clozeline.inference.tokenization import Given
from clozeline.records.package import Task
from clozeline.serving.errors import problem, refused
from clozeline.serving.http import house_labels, house_texts
from clozeline.serving.http.mlflow import Sent
from clozeline.serving.http.operation import Call
from clozeline.serving.http.tensors import Datatype, InputName, Values

Records = tuple[list[dict[str, Any]], dict[str, str]]
"""A record for each text, and headers that name the model."""
OutputName = Literal["embedding", "token", "score", "label", "entities", "answer", "start", "end"]
DATATYPES: Mapping[OutputName, Datatype] = MappingProxyType(
    {
        "embedding": "FP32",
        "token": "BYTES",
        "score": "FP32",
        "label": "BYTES",
        "entities": "BYTES",
        "answer": "BYTES",
        "start": "INT64",
        "end": "INT64",
    }
)
Tensors = tuple[dict[OutputName, Values], dict[str, str]]
"""Outputs, and headers that name the model."""
OF_PAIRS: tuple[InputName, InputName] = ("text", "text_pair")
_NO_ANSWER = Answer("", 0.0, 0, 0)
"""Padding for a context with fewer answers than another of the same request."""
_OF_ALL = frozenset({"binary_data_output"})


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

    call: Call
    model: str
    inputs: Mapping[InputName, list[str]]
    outputs: Sequence[OutputName]
    parameters: InferParameters


async def _fill_records(call: Call, name: str, sent: Sent, params: fields.InvocationParams) -> Records:
    served, texts = call.served(house_texts.FILLING, name), sent.texts()
    model = served.model
    places: list[int] = []  # indices of the texts with masks, known once they are tokenized

    def questions() -> Iterator[AnyQuestion]:
        yield model.embedding(texts, truncate=params.truncate)
        own = model.with_own_masks(texts)
        places.extend(model.with_masks(own, truncate=params.truncate))
        if places:
            masked = [own[place] for place in places]
            yield house_texts.filling(model, masked, top_k=params.top_k, truncate=params.truncate)

    vectors, *filled = await call.ask_together(served, texts, lambda: list(questions()))
    masks = dict(zip(places, (of_text for reply in filled for of_text in reply.answers), strict=True))
    house_texts.count_confidence(call, name, list(masks.values()))
    answers = [{"embedding": one_H, "masks": masks.get(place, [])} for place, one_H in enumerate(vectors.answers)]
    return answers, vectors.headers


async def _complete_records(call: Call, name: str, sent: Sent, params: fields.InvocationParams) -> Records:
    served, texts = call.served(house_texts.COMPLETING, name), sent.texts()
    vectors = await call.ask(served, texts, lambda: served.model.embedding(texts, truncate=params.truncate))
    found, reply = await house_texts.continued(call, served, texts, Decoding(), truncate=params.truncate)
    pairs = zip(vectors.answers, found, strict=True)
    return [{"embedding": vector_H, "completion": one} for vector_H, one in pairs], reply.headers


async def _embed_records(call: Call, name: str, sent: Sent, params: fields.InvocationParams) -> Records:
    reply = await house_texts.embedded(
        call, call.served(house_texts.EMBEDDING, name), sent.texts(), truncate=params.truncate
    )
    return [{"embedding": embedding_H} for embedding_H in reply.answers], reply.headers


async def _classify_records(call: Call, name: str, sent: Sent, params: fields.InvocationParams) -> Records:
    served = call.served(house_labels.CLASSIFYING, name)
    given: Sequence[Given] = sent.pairs(("text", "text_pair")) if served.model.manifest.reads_pairs else sent.texts()
    reply = await house_labels.labelled(call, served, given, top_k=params.top_k, truncate=params.truncate)
    return [{"labels": labels} for labels in reply.answers], reply.headers


async def _tag_records(call: Call, name: str, sent: Sent, params: fields.InvocationParams) -> Records:
    found, headers = await house_labels.tagged(call, call.served(house_labels.TAGGING, name), sent.texts())
    return [{"entities": of_text} for of_text in found], headers


async def _answer_records(call: Call, name: str, sent: Sent, params: fields.InvocationParams) -> Records:
    served, pairs = call.served(house_labels.ANSWERING, name), sent.pairs(("question", "context"))
    house_labels.check_answer_size(params.top_k, [context for _, context in pairs], "params.top_k")
    found, headers = await house_labels.answered(call, served, pairs, params.top_k)
    return [{"answers": answers} for answers in found], headers


async def _encoded(
    asked: TensorRequest,
    question: Callable[[Any, TensorRequest], AnyQuestion] | None = None,
    best: Callable[[Any, int, Any], list[tuple[str, float]]] = lambda model, number, answer: [],
) -> Tensors:
    """Return embeddings, the likeliest tokens of one place in each text, or both.

    `question` asks the model for these tokens; `best` returns tokens and scores, best first, of the model, the index of
    a text and its answer.
    """
    served = asked.call.served(house_texts.EMBEDDING, asked.model)
    texts, wanted = asked.inputs["text"], asked.outputs
    predicts = not {"token", "score"}.isdisjoint(wanted)

    def questions() -> Iterator[AnyQuestion]:
        if "embedding" in wanted:
            yield served.model.embedding(texts, truncate=asked.parameters.truncate)
        if question and predicts:
            yield question(served.model, asked)

    replies = await asked.call.ask_together(served, texts, lambda: list(questions()))
    values: dict[OutputName, Values] = {}
    if "embedding" in wanted:
        values["embedding"] = np.stack(replies[0].answers)
    if predicts:
        words_N = [best(served.model, *numbered) for numbered in enumerate(replies[-1].answers)]
        asked.call.service.metrics.confident(asked.model, (words[0][1] for words in words_N))
        values["token"] = [[token for token, _ in words] for words in words_N]
        values["score"] = np.array([[score for _, score in words] for words in words_N], dtype=np.float32)
    return values, replies[0].headers


def _filling(encoder: OpenEncoder, asked: TensorRequest) -> AnyQuestion:
    texts = encoder.with_own_masks(asked.inputs["text"])
    top_k = asked.parameters.top_k or house_texts.DEFAULT_NUM_CANDIDATES
    return house_texts.filling(encoder, texts, top_k=top_k, truncate=asked.parameters.truncate)


def _of_only_mask(encoder: OpenEncoder, number: int, masks: list[list[Filled]]) -> list[tuple[str, float]]:
    if len(masks) != 1:
        raise refused(
            "several_masks",
            given=f"{len(masks)} masks in text {number}",
            expected="1 mask in each text",
            param=f"inputs[0].data[{number}]",
        )
    return [(word.token_str, word.score) for word in masks[0]]


def _following(completer: Completer, asked: TensorRequest) -> AnyQuestion:
    top_k = asked.parameters.top_k or house_texts.DEFAULT_NUM_CANDIDATES
    return completer.following(asked.inputs["text"], top_k=top_k, truncate=asked.parameters.truncate)


def _next_token(completer: Completer, number: int, candidates: Candidates) -> list[tuple[str, float]]:
    return [(completer.tokenizer.token_text(token_id), score) for token_id, score in candidates]


async def _labelled(asked: TensorRequest) -> Tensors:
    """Return the labels of texts or pairs of texts, best first."""
    served = asked.call.served(house_labels.CLASSIFYING, asked.model)
    of_pairs = served.model.manifest.reads_pairs
    given: Sequence[Given] = _pairs_of(asked.inputs, *OF_PAIRS) if of_pairs else asked.inputs["text"]
    wanted = asked.parameters
    reply = await house_labels.labelled(asked.call, served, given, top_k=wanted.top_k, truncate=wanted.truncate)
    score_NK = np.array([[label.score for label in labels] for labels in reply.answers], dtype=np.float32)
    return {"label": [[one.label for one in labels] for labels in reply.answers], "score": score_NK}, reply.headers


async def _tagged(asked: TensorRequest) -> Tensors:
    """Return the entities of each text as a JSON list, because their number differs between texts."""
    served = asked.call.served(house_labels.TAGGING, asked.model)
    found, headers = await house_labels.tagged(asked.call, served, asked.inputs["text"], asked.parameters)
    return {"entities": [[orjson.dumps(of_text).decode()] for of_text in found]}, headers


async def _answered(asked: TensorRequest) -> Tensors:
    """Return the answers to each question, best first."""
    served, wanted = asked.call.served(house_labels.ANSWERING, asked.model), asked.parameters
    pairs = _pairs_of(asked.inputs, "question", "context")
    top_k = wanted.top_k or 1
    house_labels.check_answer_size(top_k, asked.inputs["context"], "parameters.top_k")
    found, headers = await house_labels.answered(asked.call, served, pairs, top_k, wanted)
    most = max(map(len, found))
    rows = [[*answers, *[_NO_ANSWER] * (most - len(answers))] for answers in found]
    return {
        "answer": [[one.answer for one in row] for row in rows],
        "score": np.array([[one.score for one in row] for row in rows], dtype=np.float32),
        "start": np.array([[one.start for one in row] for row in rows], dtype=np.int64),
        "end": np.array([[one.end for one in row] for row in rows], dtype=np.int64),
    }, headers


def _pairs_of(inputs: Mapping[InputName, list[str]], first: InputName, second: InputName) -> list[tuple[str, str]]:
    """Return the texts of two inputs as pairs, by position.

    Raises:
        ApiError: 422, the inputs differ in length.
    """
    if len(inputs[first]) != len(inputs[second]):
        raise problem(
            422,
            "unpaired_inputs",
            "the two inputs have different numbers of texts",
            given=f"{len(inputs[first])} in `{first}`, {len(inputs[second])} in `{second}`",
            expected="the same number of texts, paired by position",
            do=f"send one text in `{second}` for each text in `{first}`, and repeat texts where needed",
            param="inputs",
        )
    return list(zip(inputs[first], inputs[second], strict=True))


@dataclass(frozen=True, slots=True)
class AnswerKind:
    """Records and tensors of one kind of model."""

    records: Callable[[Call, str, Sent, fields.InvocationParams], Awaitable[Records]]
    """Function of the call, the name of the model, the texts and the parameters."""
    tensors: Callable[[TensorRequest], Awaitable[Tensors]]
    outputs: tuple[OutputName, ...]
    parameters: frozenset[str]
    """Names of the parameters that `tensors` reads."""
    inputs: tuple[InputName, ...] = ("text",)
    """Names of the inputs. For a classifier of pairs see `inputs_of`."""
    unasked: tuple[OutputName, ...] = ()
    """Default outputs if the request names none; empty: all."""


MASKS = AnswerKind(
    _fill_records,
    partial(_encoded, question=_filling, best=_of_only_mask),
    outputs=("embedding", "token", "score"),
    parameters=_OF_ALL | {"top_k", "truncate"},
    unasked=("embedding",),
)
NEXT_TOKENS = replace(
    MASKS, records=_complete_records, tensors=partial(_encoded, question=_following, best=_next_token)
)
EMBEDDINGS = AnswerKind(_embed_records, _encoded, ("embedding",), _OF_ALL | {"truncate"})
LABELS = AnswerKind(_classify_records, _labelled, ("label", "score"), _OF_ALL | {"top_k", "truncate"})
ENTITIES = AnswerKind(_tag_records, _tagged, ("entities",), _OF_ALL | set(fields.TagReading.model_fields))
ANSWERS = AnswerKind(
    _answer_records,
    _answered,
    outputs=("answer", "score", "start", "end"),
    parameters=_OF_ALL | {"top_k"} | set(fields.AnswerSearch.model_fields),
    inputs=("question", "context"),
)


def of_task(task: Task) -> AnswerKind:
    """Return the answers of the models of a task."""
    kind: AnswerKind = resolved(kind_of(task).answers)
    return kind
