"""/classify: labels of texts, or of pairs of texts."""

from collections.abc import Sequence
from typing import Annotated

from pydantic import BaseModel, Discriminator, Field, Tag
from starlette.responses import Response

from clozeline.artifacts.export.manifest import ScoreFunction
from clozeline.inference.classifier import Classifier
from clozeline.inference.classifier import LabelScore as Scored
from clozeline.inference.tokenization import Given, each_text
from clozeline.serving.errors import problem
from clozeline.serving.models.catalogue import Ability
from clozeline.serving.protocols.dataframes import Params, Records, Sent
from clozeline.serving.protocols.fields import (
    MAX_TEXTS,
    PAIR_TAG,
    PAIRS_TAG,
    TEXT_TAG,
    TEXTS_TAG,
    ModelName,
    RequestBody,
    Text,
    Texts,
    TopK,
    Truncate,
    inputs_kind,
)
from clozeline.serving.protocols.operation import Call, Example, JsonResponse, Operation
from clozeline.serving.scheduling.asking import Reply
from clozeline.serving.scheduling.work import ServedModel

_DEFAULT_NUM_LABELS = 5
_PATH = "/classify"


class Pair(RequestBody):
    """Two texts that are read together, under the names of Hugging Face's pipeline."""

    text: Text
    text_pair: Text


def _labelled_kind(inputs: object) -> str | None:
    first = inputs[0] if isinstance(inputs, list) and inputs else None
    if isinstance(first, dict | Pair):
        return PAIRS_TAG
    return PAIR_TAG if isinstance(inputs, dict | Pair) else inputs_kind(inputs)


_PAIRS = f'a pair of texts, {{"text": …, "text_pair": …}}, or a list of 1 to {MAX_TEXTS} of either'
LabelledInputs = Annotated[
    Annotated[Text, Tag(TEXT_TAG)]
    | Annotated[Texts, Tag(TEXTS_TAG)]
    | Annotated[Pair, Tag(PAIR_TAG)]
    | Annotated[Annotated[list[Pair], Field(min_length=1, max_length=MAX_TEXTS)], Tag(PAIRS_TAG)],
    Field(description=f"One text, {_PAIRS}. Pairs are for models that were trained on pairs."),
    Discriminator(
        _labelled_kind,
        custom_error_type="inputs_type",
        custom_error_message=f"a text, {_PAIRS}",
    ),
]


class ClassifyParameters(RequestBody):
    top_k: Annotated[TopK | None, Field(description="Number of labels for each text; null: 5, or all of `labels`.")] = (
        None
    )
    function_to_apply: Annotated[
        ScoreFunction | None,
        Field(description="Function from logits to scores; none: the logits; null: the function used in training."),
    ] = None
    labels: Annotated[
        Annotated[list[str], Field(min_length=1)] | None,
        Field(description="Return only these labels; their scores are still those among all labels."),
    ] = None


class ClassifyRequest(RequestBody):
    inputs: LabelledInputs
    parameters: ClassifyParameters | None = None
    truncate: Truncate = False
    model: ModelName = None


class LabelScore(BaseModel):
    label: str
    score: float = Field(
        description="Probability among all labels, or of this label alone if a text can have several; "
        "`function_to_apply` changes it."
    )


ClassifyResponse = list[list[LabelScore]]
"""The most probable labels of each text, best first. A single text also gets a list of lists."""


CLASSIFYING = Ability(Classifier, rank=lambda model: model.manifest.reads_pairs)
"""Without a name, models of single texts come first."""
CLASSIFYING_PAIRS = Ability(
    Classifier,
    has=lambda model: model.manifest.reads_pairs,
    missing="reads pairs of texts",
    expected="a classifier of pairs",
    do="start the server with a cross-encoder, or compare embeddings of texts with /similarity",
)


CLASSIFY_EXAMPLES = {
    "one text": Example("The likeliest labels", {"inputs": "Apply a 2D convolution over the input."}),
    "several": Example(
        "Several texts, the best label of each",
        {
            "inputs": ["Apply a 2D convolution over the input.", "Parse a date."],
            "parameters": {"top_k": 1},
        },
    ),
    "pair": Example(
        "A pair of texts, for a model that reads pairs",
        {"inputs": {"text": "How do I sort a list?", "text_pair": "Sort a list in place."}},
        ability=CLASSIFYING_PAIRS,
    ),
}


async def classify(call: Call, body: ClassifyRequest) -> Response:
    given = _given_in(body.inputs)
    served = classifier_of(call, given, body.model)
    parameters = body.parameters or ClassifyParameters()
    wanted = parameters.labels
    if wanted is not None:
        _check_labels(served.model, wanted)
    reply = await labelled(call, served, given, truncate=body.truncate, function=parameters.function_to_apply)
    top_k = parameters.top_k or (_DEFAULT_NUM_LABELS if wanted is None else len(served.model.manifest.labels))
    identity, best = served.identity, [scores[0].label for scores in reply.answers]
    headers = reply.headers | call.service.given.keep(identity.name, identity.version, best)
    return JsonResponse([_chosen(scores, wanted, top_k) for scores in reply.answers], headers=headers)


def classifier_of(call: Call, given: Sequence[Given], name: str | None = None) -> ServedModel[Classifier]:
    """Return the classifier called `name`, or the first, that reads what is given: texts or pairs.

    Raises:
        ApiError: 404, no such classifier.
    """
    of_pairs = any(isinstance(one, tuple) for one in given)
    return call.served(CLASSIFYING_PAIRS if of_pairs else CLASSIFYING, name)


async def labelled(
    call: Call,
    served: ServedModel[Classifier],
    given: Sequence[Given],
    *,
    truncate: bool,
    top_k: int | None = None,
    function: ScoreFunction | None = None,
) -> Reply[list[Scored]]:
    """Return the labels of each text or pair, best first. Raises what `Call.ask` raises.

    `top_k` None: all labels. `function` None: as the model was trained. Only scores of that function count for drift.
    """
    manifest = served.model.manifest
    reply = await call.ask(
        served,
        each_text(given),
        lambda: served.model.classifying(
            given, top_k=top_k or len(manifest.labels), truncate=truncate, function=function
        ),
    )
    if function in (None, manifest.label_scores):
        call.service.metrics.confident(served.identity.name, (scores[0].score for scores in reply.answers))
    return reply


def _given_in(inputs: str | Pair | Sequence[str | Pair]) -> list[Given]:
    """Return the texts or pairs as a model reads them."""
    listed = [inputs] if isinstance(inputs, str | Pair) else inputs
    return [(one.text, one.text_pair) if isinstance(one, Pair) else one for one in listed]


def _check_labels(classifier: Classifier, wanted: list[str]) -> None:
    known = classifier.manifest.labels
    for label in wanted:
        if label not in known:
            raise problem(
                404,
                "no_such_label",
                "the model has no such label",
                given=label,
                expected=f"one of: {', '.join(known)}",
                do="choose from the `labels` of this model in /models",
                param="parameters.labels",
            )


def _chosen(scores: list[Scored], wanted: list[str] | None, top_k: int) -> list[Scored]:
    return [score for score in scores if wanted is None or score.label in wanted][:top_k]


async def records(call: Call, name: str, sent: Sent, params: Params) -> Records:
    """Answer like MLflow's scoring server."""
    served = call.served(CLASSIFYING, name)
    given: Sequence[Given] = sent.pairs(("text", "text_pair")) if served.model.manifest.reads_pairs else sent.texts()
    reply = await labelled(call, served, given, top_k=params.top_k, truncate=params.truncate)
    return [{"labels": labels} for labels in reply.answers], reply.headers


CLASSIFY = Operation(
    path="/classify",
    answer=classify,
    summary="Classify texts or pairs of texts",
    result_description="The likeliest labels of each text, best first",
    result=ClassifyResponse,
    ability=CLASSIFYING,
    body=ClassifyRequest,
    examples=CLASSIFY_EXAMPLES,
)
