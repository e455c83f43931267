"""Inputs, outputs and parameters of each kind of model in the Open Inference Protocol.

N texts, H hidden, K candidates, labels or answers: `embedding` is [N, H], `entities` [N, 1], all others are [N, K].
Parameters of the protocol are numbers, strings and booleans: lists that other paths take are missing here.
"""

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Annotated, Any, Literal

import numpy as np
import orjson
from pydantic import Field

from clozeline.artifacts.export.manifest import Manifest, Task
from clozeline.inference.answerer import Answer
from clozeline.inference.completer import Candidates, Completer
from clozeline.inference.encoder import Encoder, Filled
from clozeline.inference.model_kinds import kind_of, resolved
from clozeline.inference.question import AnyQuestion
from clozeline.inference.tokenization import Given
from clozeline.serving.errors import problem
from clozeline.serving.protocols.fields import TopK, Truncate
from clozeline.serving.protocols.house.answer import ANSWERING, AnswerSearch, answered, check_answer_size
from clozeline.serving.protocols.house.classify import CLASSIFYING, labelled
from clozeline.serving.protocols.house.embed import EMBEDDING
from clozeline.serving.protocols.house.fill_mask import DEFAULT_NUM_CANDIDATES, filling
from clozeline.serving.protocols.house.tag import TAGGING, TagReading, tagged
from clozeline.serving.protocols.operation import Call
from clozeline.serving.protocols.tensors import Datatype, InputName, Values

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
Answered = tuple[dict[OutputName, Values], dict[str, str]]
"""Outputs, and headers that name the model."""
_OF_PAIRS: tuple[InputName, InputName] = ("text", "text_pair")
_NO_ANSWER = Answer("", 0.0, 0, 0)
"""Padding for a context with fewer answers than another of the same request."""


class InferParameters(TagReading, AnswerSearch):
    """Parameters for tags and answers are those of /tag and /answer."""

    binary_data_output: bool = False
    top_k: Annotated[
        TopK | None,
        Field(
            description="Number of candidates for the mask or the next token (null: 5), labels (all) or answers (1)."
        ),
    ] = None
    truncate: Truncate = False


@dataclass(frozen=True, slots=True)
class Asked:
    """A checked request: its model has the named inputs, outputs and parameters."""

    call: Call
    model: str
    inputs: Mapping[InputName, list[str]]
    outputs: Sequence[OutputName]
    parameters: InferParameters


async def _labelled(asked: Asked) -> Answered:
    """Return the labels of texts or pairs of texts, best first."""
    served = asked.call.served(CLASSIFYING, asked.model)
    of_pairs = served.model.manifest.reads_pairs
    given: Sequence[Given] = _pairs_of(asked.inputs, *_OF_PAIRS) if of_pairs else asked.inputs["text"]
    wanted = asked.parameters
    reply = await labelled(asked.call, served, given, top_k=wanted.top_k, truncate=wanted.truncate)
    score_NK = np.array([[label.score for label in labels] for labels in reply.answers], dtype=np.float32)
    return {"label": [[one.label for one in labels] for labels in reply.answers], "score": score_NK}, reply.headers


async def _encoded(asked: Asked, predicting: "_Predicting | None" = None) -> Answered:
    """Return embeddings, the likeliest tokens of each text, or both."""
    served = asked.call.served(EMBEDDING, asked.model)
    texts, wanted = asked.inputs["text"], asked.outputs
    predicts = predicting is not None and bool({"token", "score"} & set(wanted))

    def questions() -> Iterator[AnyQuestion]:
        if "embedding" in wanted:
            yield served.model.embedding(texts, truncate=asked.parameters.truncate)
        if predicting is not None and predicts:
            yield predicting.question(served.model, asked)

    replies = await asked.call.ask_together(served, texts, lambda: list(questions()))
    values: dict[OutputName, Values] = {}
    if "embedding" in wanted:
        values["embedding"] = np.stack(replies[0].answers)
    if predicting is not None and predicts:
        best = [predicting.best(served.model, *numbered) for numbered in enumerate(replies[-1].answers)]
        asked.call.service.metrics.confident(asked.model, (words[0][1] for words in best))
        values["token"] = [[token for token, _ in words] for words in best]
        values["score"] = np.array([[score for _, score in words] for words in best], dtype=np.float32)
    return values, replies[0].headers


async def _tagged(asked: Asked) -> Answered:
    """Return the entities of each text as a JSON list, because their number differs between texts."""
    served = asked.call.served(TAGGING, asked.model)
    found, headers = await tagged(asked.call, served, asked.inputs["text"], asked.parameters)
    return {"entities": [[orjson.dumps(of_text).decode()] for of_text in found]}, headers


async def _answered(asked: Asked) -> Answered:
    """Return the answers to each question, best first."""
    served, wanted = asked.call.served(ANSWERING, asked.model), asked.parameters
    pairs = _pairs_of(asked.inputs, "question", "context")
    search = wanted.spans(wanted.top_k or 1)
    check_answer_size(search.top_k, asked.inputs["context"], "parameters.top_k")
    found, headers = await answered(asked.call, served, pairs, search, wanted.reading())
    most = max(map(len, found))
    rows = [[*answers, *[_NO_ANSWER] * (most - len(answers))] for answers in found]
    return {
        "answer": [[one.answer for one in row] for row in rows],
        "score": np.array([[one.score for one in row] for row in rows], dtype=np.float32),
        "start": np.array([[one.start for one in row] for row in rows], dtype=np.int64),
        "end": np.array([[one.end for one in row] for row in rows], dtype=np.int64),
    }, headers


@dataclass(frozen=True, slots=True)
class _Predicting:
    """How a language model predicts the tokens of one place in each text."""

    question: Callable[[Any, Asked], AnyQuestion]
    """Function of the model and the request."""
    best: Callable[[Any, int, Any], list[tuple[str, float]]]
    """Function from the model, the index of a text and its answer to tokens and scores, best first."""


def _filling(encoder: Encoder, asked: Asked) -> AnyQuestion:
    texts = encoder.with_own_masks(asked.inputs["text"])
    top_k = asked.parameters.top_k or DEFAULT_NUM_CANDIDATES
    return filling(encoder, texts, top_k=top_k, truncate=asked.parameters.truncate)


def _following(completer: Completer, asked: Asked) -> AnyQuestion:
    top_k = asked.parameters.top_k or DEFAULT_NUM_CANDIDATES
    return completer.following(asked.inputs["text"], top_k=top_k, truncate=asked.parameters.truncate)


def _of_next_token(completer: Completer, number: int, candidates: Candidates) -> list[tuple[str, float]]:
    return [(completer.tokenizer.token_text(token_id), score) for token_id, score in candidates]


def _of_only_mask(encoder: Encoder, number: int, masks: list[list[Filled]]) -> list[tuple[str, float]]:
    if len(masks) != 1:
        raise problem(
            422,
            "several_masks",
            "a tensor has room for one mask in each text",
            given=f"{len(masks)} masks in text {number}",
            expected="1 mask in each text",
            do="send the text to /fill-mask, which answers for each mask",
            param=f"inputs[0].data[{number}]",
        )
    return [(word.token_str, word.score) for word in masks[0]]


@dataclass(frozen=True, slots=True)
class TensorKind:
    """Tensors of one kind of model."""

    answer: Callable[[Asked], Awaitable[Answered]]
    outputs: tuple[OutputName, ...]
    parameters: frozenset[str]
    """Names of the parameters that it reads."""
    inputs: tuple[InputName, ...] = ("text",)
    """Names of the inputs. For a classifier of pairs see `inputs_of`."""
    unasked: tuple[OutputName, ...] = ()
    """Default outputs if the request names none; empty: all."""


_OF_ALL = frozenset({"binary_data_output"})
_TOKENS: tuple[OutputName, ...] = ("embedding", "token", "score")
_OF_TOKENS = _OF_ALL | {"top_k", "truncate"}
MASKS = TensorKind(
    partial(_encoded, predicting=_Predicting(_filling, _of_only_mask)), _TOKENS, _OF_TOKENS, unasked=("embedding",)
)
NEXT_TOKENS = TensorKind(
    partial(_encoded, predicting=_Predicting(_following, _of_next_token)), _TOKENS, _OF_TOKENS, unasked=("embedding",)
)
LABELS = TensorKind(_labelled, ("label", "score"), _OF_ALL | {"top_k", "truncate"})
EMBEDDINGS = TensorKind(_encoded, ("embedding",), _OF_ALL | {"truncate"})
ENTITIES = TensorKind(_tagged, ("entities",), _OF_ALL | set(TagReading.model_fields))
ANSWERS = TensorKind(
    _answered,
    ("answer", "score", "start", "end"),
    _OF_ALL | {"top_k"} | set(AnswerSearch.model_fields),
    inputs=("question", "context"),
)


def tensor_kind(task: Task) -> TensorKind:
    """Return the tensors of the models of a task."""
    kind: TensorKind = resolved(kind_of(task).tensors)
    return kind


def inputs_of(manifest: Manifest) -> tuple[InputName, ...]:
    """Return the names of the inputs. A classifier of pairs has two, `text` and `text_pair`, matched by position."""
    return _OF_PAIRS if manifest.reads_pairs else tensor_kind(manifest.task).inputs


def check_inputs(manifest: Manifest, given: Sequence[InputName]) -> None:
    """Raise ApiError (422) if the request has other inputs than the model."""
    names = inputs_of(manifest)
    if sorted(given) != sorted(names):
        raise problem(
            422,
            "no_such_input",
            "these are not the inputs of the model",
            given=", ".join(given),
            expected=" and ".join(names),
            do="send each input that /v2/models/NAME lists, once",
            param="inputs",
        )


def outputs_of(task: Task, requested: Sequence[OutputName]) -> tuple[OutputName, ...]:
    """Return the requested names, each once, or the default outputs if none are named.

    Raises:
        ApiError: 422, a model of `task` has no such output.
    """
    kind = tensor_kind(task)
    wanted = tuple(dict.fromkeys(requested)) or kind.unasked or kind.outputs
    wrong = next((name for name in wanted if name not in kind.outputs), None)
    if wrong:
        raise problem(
            422,
            "no_such_output",
            "the model has no output of that name",
            given=wrong,
            expected=f"one of: {', '.join(kind.outputs)}",
            do="choose from the outputs in /v2/models/NAME",
            param="outputs",
        )
    return wanted


def check_parameters(task: Task, parameters: InferParameters) -> None:
    """Raise ApiError (422) if a parameter was sent that models of `task` do not read."""
    known = tensor_kind(task).parameters
    unread = sorted(parameters.model_fields_set - known)
    if unread:
        raise problem(
            422,
            "no_such_parameter",
            "the model does not read this parameter",
            given=unread[0],
            expected=f"one of: {', '.join(sorted(known))}",
            do="leave it out",
            param=f"parameters.{unread[0]}",
        )


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
