"""The inputs and outputs of a model by the names that the Open Inference Protocol gives them.

N texts, H hidden, K candidates, labels or answers: `embedding` is [N, H], `entities` [N, 1], all others are [N, K].
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

import numpy as np
from fastapi import Request

from clozeline.inference.encoder import Encoder, Filled
from clozeline.inference.manifest import Task
from clozeline.inference.question import AnyQuestion, Question
from clozeline.serving.errors import problem
from clozeline.serving.masks import filling
from clozeline.serving.protocols.infer_parameters import InferParameters
from clozeline.serving.protocols.tensors import Datatype, InputName, Values
from clozeline.serving.routes import with_mask_token
from clozeline.serving.schemas import RequestBody
from clozeline.serving.service import Service

OutputName = Literal["embedding", "token", "score", "label", "entities", "answer", "start", "end"]
INPUTS: Mapping[Task, tuple[InputName, ...]] = MappingProxyType(
    {
        "fill-mask": ("text",),
        "text-classification": ("text",),
        "feature-extraction": ("text",),
        "token-classification": ("text",),
        "question-answering": ("question", "context"),
    }
)
OUTPUTS: Mapping[Task, tuple[OutputName, ...]] = MappingProxyType(
    {
        "fill-mask": ("embedding", "token", "score"),
        "text-classification": ("label", "score"),
        "feature-extraction": ("embedding",),
        "token-classification": ("entities",),
        "question-answering": ("answer", "score", "start", "end"),
    }
)
_UNASKED: Mapping[Task, tuple[OutputName, ...]] = MappingProxyType({**OUTPUTS, "fill-mask": ("embedding",)})
"""What comes where no outputs are named."""
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
_DEFAULT_CANDIDATES = 5
Answered = tuple[dict[OutputName, Values], dict[str, str]]
"""The outputs, and the headers that tell who gave them."""


class OutputParameters(RequestBody):
    binary_data: bool | None = None


class RequestedOutput(RequestBody):
    name: OutputName
    parameters: OutputParameters = OutputParameters()


@dataclass(frozen=True, slots=True)
class Asked:
    request: Request
    model: str
    inputs: Mapping[InputName, list[str]]
    outputs: Sequence[OutputName]
    parameters: InferParameters
    timeout_milliseconds: int | None


def check_inputs(task: Task, given: Sequence[InputName]) -> None:
    """Raises ApiError: 422, a model of `task` is asked with other inputs."""
    if sorted(given) != sorted(INPUTS[task]):
        raise problem(
            422,
            "no_such_input",
            "the model is asked with other inputs",
            given=", ".join(given),
            expected=" and ".join(INPUTS[task]),
            do="name the inputs as /v2/models/NAME does, each once",
            param="inputs",
        )


def outputs_of(task: Task, requested: Sequence[RequestedOutput]) -> tuple[OutputName, ...]:
    """The names asked for, each once.

    Raises:
        ApiError: 422, a model of `task` has no such output.
    """
    wanted = tuple(dict.fromkeys(output.name for output in requested)) or _UNASKED[task]
    wrong = next((name for name in wanted if name not in OUTPUTS[task]), None)
    if wrong:
        raise problem(
            422,
            "no_such_output",
            "the model has no output of that name",
            given=wrong,
            expected=f"one of: {', '.join(OUTPUTS[task])}",
            do="choose from the outputs in /v2/models/NAME",
            param="outputs",
        )
    return wanted


async def labelled(service: Service, asked: Asked) -> Answered:
    """Labels of a classifier, best first."""
    served = service.catalogue.classifier(asked.model)
    texts = asked.inputs["text"]
    top_k = asked.parameters.top_k or len(served.model.manifest.labels)
    reply = await service.asking.ask(
        asked.request,
        served,
        texts,
        lambda: served.model.classifying(texts, top_k=top_k, truncate=asked.parameters.truncate),
        asked.timeout_milliseconds,
    )
    service.metrics.confident(asked.model, (labels[0].score for labels in reply.answers))
    score_NK = np.array([[label.score for label in labels] for labels in reply.answers], dtype=np.float32)
    return {"label": [[one.label for one in labels] for labels in reply.answers], "score": score_NK}, reply.headers


async def encoded(service: Service, asked: Asked) -> Answered:
    """The embeddings of an encoder, its words for the one mask of each text, or both."""
    served = service.catalogue.embedder(asked.model)
    texts, wanted = asked.inputs["text"], asked.outputs
    fills = bool({"token", "score"} & set(wanted))

    def questions() -> Iterator[AnyQuestion]:
        if "embedding" in wanted:
            yield served.model.embedding(texts, truncate=asked.parameters.truncate)
        if fills:
            assert isinstance(served.model, Encoder), "no other model has these outputs"
            yield _filling(served.model, asked)

    replies = await service.asking.ask_together(
        asked.request, served, texts, lambda: list(questions()), asked.timeout_milliseconds
    )
    values: dict[OutputName, Values] = {}
    if "embedding" in wanted:
        values["embedding"] = np.stack(replies[0].answers)
    if fills:
        masks = replies[-1].answers
        service.metrics.confident(asked.model, (words[0].score for of_text in masks for words in of_text))
        best = [_only_mask(number, of_text) for number, of_text in enumerate(masks)]
        values["token"] = [[word.token_str for word in words] for words in best]
        values["score"] = np.array([[word.score for word in words] for words in best], dtype=np.float32)
    return values, replies[0].headers


def _filling(encoder: Encoder, asked: Asked) -> Question[list[list[Filled]]]:
    texts = with_mask_token(asked.inputs["text"], encoder.manifest.special_tokens.mask_token)
    top_k = asked.parameters.top_k or _DEFAULT_CANDIDATES
    return filling(encoder, texts, top_k=top_k, truncate=asked.parameters.truncate)


def _only_mask(number: int, masks: list[list[Filled]]) -> list[Filled]:
    if len(masks) != 1:
        raise problem(
            422,
            "several_masks",
            "a tensor has room for one mask in each text",
            given=f"{len(masks)} masks in text {number}",
            expected="1",
            do="send the text to /fill-mask, which answers for each mask",
            param=f"inputs[0].data[{number}]",
        )
    return masks[0]
