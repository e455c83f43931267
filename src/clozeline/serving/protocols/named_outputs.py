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
from clozeline.inference.manifest import Manifest, Task
from clozeline.inference.question import AnyQuestion, Question
from clozeline.inference.tokenization import Given
from clozeline.serving.errors import problem
from clozeline.serving.masks import filling
from clozeline.serving.models.service import Service
from clozeline.serving.protocols.infer_parameters import InferParameters
from clozeline.serving.protocols.tensors import Datatype, InputName, Values
from clozeline.serving.schemas import RequestBody

OutputName = Literal["embedding", "token", "score", "label", "entities", "answer", "start", "end"]
_INPUTS: Mapping[Task, tuple[InputName, ...]] = MappingProxyType(
    {
        "fill-mask": ("text",),
        "text-classification": ("text",),
        "feature-extraction": ("text",),
        "token-classification": ("text",),
        "question-answering": ("question", "context"),
    }
)
_OF_PAIRS: tuple[InputName, InputName] = ("text", "text_pair")
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


def inputs_of(manifest: Manifest) -> tuple[InputName, ...]:
    """The names of what it reads: of a classifier of pairs two, each first text with the second in its place."""
    return _OF_PAIRS if manifest.reads_pairs else _INPUTS[manifest.task]


def check_inputs(manifest: Manifest, given: Sequence[InputName]) -> None:
    """Raises ApiError: 422, the model is asked with other inputs."""
    names = inputs_of(manifest)
    if sorted(given) != sorted(names):
        raise problem(
            422,
            "no_such_input",
            "the model is asked with other inputs",
            given=", ".join(given),
            expected=" and ".join(names),
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


def pairs_of(inputs: Mapping[InputName, list[str]], first: InputName, second: InputName) -> list[tuple[str, str]]:
    """The texts of two inputs, by their places.

    Raises:
        ApiError: 422, one has more of them than the other.
    """
    if len(inputs[first]) != len(inputs[second]):
        raise problem(
            422,
            "unpaired_inputs",
            "the texts of the two inputs belong together by their places",
            given=f"{len(inputs[first])} in `{first}`, {len(inputs[second])} in `{second}`",
            expected="as many of one as of the other",
            do=f"send as many in `{second}` as in `{first}`, again where several go with one",
            param="inputs",
        )
    return list(zip(inputs[first], inputs[second], strict=True))


async def labelled(service: Service, asked: Asked) -> Answered:
    """Labels of a classifier, best first: of texts, or of pairs of them."""
    served = service.catalogue.classifier(asked.model)
    of_pairs = served.model.manifest.reads_pairs
    given: Sequence[Given] = pairs_of(asked.inputs, *_OF_PAIRS) if of_pairs else asked.inputs["text"]
    top_k = asked.parameters.top_k or len(served.model.manifest.labels)
    reply = await service.asking.ask(
        asked.request,
        served,
        [text for texts in asked.inputs.values() for text in texts],
        lambda: served.model.classifying(given, top_k=top_k, truncate=asked.parameters.truncate),
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
    texts = encoder.with_own_masks(asked.inputs["text"])
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
