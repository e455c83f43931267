"""Our own paths for labels and spans, /classify, /zero-shot, /tag and /answer; both as tensors.

/zero-shot classifies by labels that the client names, without training. /tag has the field names of Hugging Face's
token-classification task, /answer those of its question-answering task.
"""

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Annotated

import numpy as np
import orjson
from pydantic import BaseModel, Discriminator, Field, Tag
from starlette.responses import Response

from clozeline.inference import fields
from clozeline.inference.answerer import Answer, Answerer
from clozeline.inference.classifier import Classifier, Entity, LabelScore, Tagged, Tagger
from clozeline.inference.fields import StrictModel
from clozeline.inference.open_model import OpenModel, alone
from clozeline.inference.tokenization import Given, each_text
from clozeline.records.package import ScoreFunction
from clozeline.serving.asking import Reply
from clozeline.serving.errors import check_known, refused
from clozeline.serving.http import bodies
from clozeline.serving.http.operation import Call, JsonResponse, Operation
from clozeline.serving.http.tensors import AnswerKind, TensorRequest, Tensors
from clozeline.serving.loading import ServedModel
from clozeline.serving.models import Ability
from clozeline.serving.zero_shot import can_choose, choosing, tells_entailment

_DEFAULT_NUM_LABELS = 5
_PAIRS = f'a pair of texts, {{"text": …, "text_pair": …}}, or a list of 1 to {bodies.MAX_TEXTS} of either'
# Without a name, models of single texts come first.
CLASSIFYING = Ability(Classifier, rank=lambda model: model.manifest.reads_pairs)
CLASSIFYING_PAIRS = Ability(
    Classifier,
    has=lambda model: model.manifest.reads_pairs,
    missing="reads pairs of texts",
    expected="a classifier of pairs",
    do="start the server with a cross-encoder, or compare embeddings of texts with /similarity",
)
# If no model is named, entailment models come first.
CHOOSING = Ability(
    OpenModel,  # type: ignore[type-abstract]  # isinstance takes any class
    has=can_choose,
    rank=lambda model: not tells_entailment(model),
)
TAGGING = Ability(Tagger)
ANSWERING = Ability(Answerer)
# Padding for a context with fewer answers than another of the same request.
_NO_ANSWER = Answer("", 0.0, 0, 0)


class Pair(StrictModel):
    """Two texts that are read together, under the names of Hugging Face's pipeline."""

    text: fields.Text
    text_pair: fields.Text


def _labelled_kind(inputs: object) -> str | None:
    first = inputs[0] if isinstance(inputs, list) and inputs else None
    if isinstance(first, dict | Pair):
        return bodies.PAIRS_TAG
    return bodies.PAIR_TAG if isinstance(inputs, dict | Pair) else bodies.inputs_kind(inputs)


LabelledInputs = Annotated[
    Annotated[fields.Text, Tag(bodies.TEXT_TAG)]
    | Annotated[bodies.Texts, Tag(bodies.TEXTS_TAG)]
    | Annotated[Pair, Tag(bodies.PAIR_TAG)]
    | Annotated[Annotated[list[Pair], Field(min_length=1, max_length=bodies.MAX_TEXTS)], Tag(bodies.PAIRS_TAG)],
    Field(description=f"One text, {_PAIRS}. Pairs are for models that were trained on pairs."),
    Discriminator(_labelled_kind, custom_error_type="inputs_type", custom_error_message=f"a text, {_PAIRS}"),
]


class ClassifyRequest(StrictModel):
    inputs: LabelledInputs
    parameters: fields.ClassifyParameters | None = None
    truncate: fields.Truncate = False
    model: fields.ModelName = None


# The most probable labels of each text, best first. A single text also gets a list of lists.
ClassifyResponse = list[list[LabelScore]]


async def classify(call: Call, body: ClassifyRequest) -> Response:
    """Classify texts or pairs of texts.

    Returns:
        The likeliest labels of each text, best first.
    """
    given = _given_in(body.inputs)
    served = classifier_of(call, given, body.model)
    asked = body.parameters or fields.ClassifyParameters()
    wanted = asked.labels
    if wanted is not None:
        check_known("no_such_label", wanted, served.model.manifest.labels, "parameters.labels")
    reply = await labelled(call, served, given, truncate=body.truncate, function=asked.function_to_apply)
    top_k = asked.top_k or (_DEFAULT_NUM_LABELS if wanted is None else len(served.model.manifest.labels))
    headers = call.scorable(served, reply.headers, [scores[0].label for scores in reply.answers])
    kept = [[one for one in scores if wanted is None or one.label in wanted] for scores in reply.answers]
    return JsonResponse([scores[:top_k] for scores in kept], headers=headers)


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
) -> Reply[list[list[LabelScore]]]:
    """Return the labels of each text or pair, best first. Raises what `Call.converse` raises.

    `top_k` None: all labels. `function` None: as the model was trained. Only scores of that function count for drift.
    """
    manifest = served.model.manifest
    most = top_k or len(manifest.labels)
    question = partial(served.model.classifying, given, top_k=most, truncate=truncate, function=function)
    reply = await call.converse(served, each_text(given), alone(question))
    if function in (None, manifest.label_scores):
        call.confident(served, reply.answers)
    return reply


def _given_in(inputs: str | Pair | Sequence[str | Pair]) -> list[Given]:
    """Return the texts or pairs as a model reads them."""
    listed = [inputs] if isinstance(inputs, str | Pair) else inputs
    return [(one.text, one.text_pair) if isinstance(one, Pair) else one for one in listed]


CLASSIFY = Operation(path="/classify", answer=classify, result=ClassifyResponse, ability=CLASSIFYING)


class ZeroShotRequest(StrictModel):
    inputs: fields.Text
    parameters: fields.ZeroShotParameters
    truncate: fields.Truncate = False
    model: fields.ModelName = None


class ZeroShotLists(BaseModel):
    """Labels and scores in two lists, as huggingface_hub before 1.0 reads them."""

    sequence: str
    labels: list[str]
    scores: list[float]


async def zero_shot(call: Call, body: ZeroShotRequest) -> Response:
    """Classify a text by labels of your own, without training.

    Chooses by entailment if a served model was trained on it, otherwise by filling the template with an encoder.

    Returns:
        The labels with their probabilities, best first.
    """
    reply = await _scores(call, body)
    return JsonResponse(reply.answers, headers=reply.headers)


async def zero_shot_lists(call: Call, body: ZeroShotRequest) -> Response:
    """Zero-shot classification, in the form that huggingface_hub before 1.0 reads.

    Returns:
        The labels, best first, and their probabilities.
    """
    reply = await _scores(call, body)
    labels, scores = [one.label for one in reply.answers], [one.score for one in reply.answers]
    answer = ZeroShotLists(sequence=body.inputs, labels=labels, scores=scores)
    return JsonResponse(answer.model_dump(), headers=reply.headers)


async def _scores(call: Call, body: ZeroShotRequest) -> Reply[list[LabelScore]]:
    """Return the labels with their scores, best first."""
    served, wanted = call.served(CHOOSING, body.model), body.parameters
    if wanted.multi_label and not isinstance(served.model, Classifier):
        expected = "false, or a served classifier that was trained on entailment"
        where = "parameters.multi_label"
        raise refused("labels_compete", given="multi_label: true", expected=expected, param=where)
    text, labels = body.inputs, wanted.candidate_labels
    asking = partial(choosing, template=wanted.hypothesis_template, multi_label=wanted.multi_label)
    dialogue = asking(served.model, text, labels, truncate=body.truncate)
    reply = await call.converse(served, [text] * len(labels), dialogue)
    call.confident(served, [reply.answers], Classifier.confidence)
    return reply


ZERO_SHOT = Operation(
    path="/zero-shot", answer=zero_shot, result=list[LabelScore], ability=CHOOSING, place="inputs".format
)


class TaggedSpan(StrictModel):
    """Type and place of an entity, without its text and score."""

    entity_group: str
    start: Annotated[int, Field(ge=0, description="First character in the text.")]
    end: Annotated[int, Field(ge=0)]


class TagRequest(StrictModel):
    inputs: bodies.Inputs
    parameters: fields.TagParameters | None = None
    model: fields.ModelName = None


# Mirrors the request: the entities of one text, or a list of entities for each of several texts.
TagResponse = Tagged | list[Tagged]


async def tag(call: Call, body: TagRequest) -> Response:
    """Find the entities of a text.

    A text that is too long for the model is read in overlapping windows and is never cut.

    Returns:
        The entities of the text, in order; a list for each of several texts.
    """
    served = call.served(TAGGING, body.model)
    wanted = body.parameters or fields.TagParameters()
    reply = await tagged(call, served, bodies.texts_of(body.inputs), wanted, wanted.ignore_labels)
    found, headers = reply.answers, reply.headers
    if wanted.aggregation_strategy != "none":
        best = [entities_of(one for one in of_text if isinstance(one, Entity)) for of_text in found]
        headers = call.scorable(served, headers, best, are_entities=True)
    return JsonResponse(found[0] if isinstance(body.inputs, str) else found, headers=headers)


def entities_of(entities: Iterable[Entity | TaggedSpan]) -> frozenset[tuple[str, int, int]]:
    """Return what feedback compares: the type and place of each entity, in any order."""
    return frozenset((entity.entity_group, entity.start, entity.end) for entity in entities)


async def tagged(
    call: Call,
    served: ServedModel[Tagger],
    texts: Sequence[str],
    wanted: fields.TagReading,
    ignored: Sequence[str] = (fields.OUTSIDE,),
) -> Reply[list[Tagged]]:
    """Return the entities of each text. Raises what `Call.converse` raises."""
    reply = await call.converse(served, texts, served.model.tags(texts, wanted, ignored))
    call.confident(served, reply.answers)
    return reply


TAG = Operation(path="/tag", answer=tag, result=TagResponse, ability=TAGGING)


class QuestionInputs(StrictModel):
    question: fields.Text
    context: fields.Text


class AnswerRequest(StrictModel):
    inputs: QuestionInputs
    parameters: fields.AnswerParameters | None = None
    model: fields.ModelName = None


# The best answer; a list, best first, if the request allows more than one.
AnswerResponse = Answer | list[Answer]


async def answer(call: Call, body: AnswerRequest) -> Response:
    """Answer a question from a context.

    A context that is too long for the model is read in overlapping windows and is never cut.

    Returns:
        The best answer, a span of the context, or a list if `top_k` is above 1.
    """
    served = call.served(ANSWERING, body.model)
    wanted = body.parameters or fields.AnswerParameters()
    top_k = wanted.top_k or 1
    pairs = [(body.inputs.question, body.inputs.context)]
    reply = await answered(call, served, pairs, top_k, wanted)
    (answers,) = reply.answers
    headers = call.scorable(served, reply.headers, [one.answer for one in answers[:1]])
    return JsonResponse(answers[0] if top_k == 1 else answers, headers=headers)


async def answered(
    call: Call, served: ServedModel[Answerer], pairs: Sequence[tuple[str, str]], top_k: int, search: fields.AnswerSearch
) -> Reply[list[list[Answer]]]:
    """Return the answers to each question with its context. Raises what `Call.converse` raises."""
    dialogue = served.model.answering(pairs, top_k=top_k, search=search)
    reply = await call.converse(served, each_text(pairs), dialogue)
    call.confident(served, reply.answers)
    return reply


ANSWER = Operation(
    path="/answer",
    answer=answer,
    result=AnswerResponse,
    ability=ANSWERING,
    place="inputs.question".format,  # a context is never at fault: one of any length is read in windows
)


async def _labelled(asked: TensorRequest) -> Tensors:
    """Return the labels of texts or pairs of texts, best first."""
    top_k, truncate = asked.parameters.top_k, asked.parameters.truncate
    reply = await labelled(asked.call, asked.served, asked.given, top_k=top_k, truncate=truncate)
    score_NK = np.array([[label.score for label in labels] for labels in reply.answers], dtype=np.float32)
    return {"label": [[one.label for one in labels] for labels in reply.answers], "score": score_NK}, reply.headers


async def _tagged(asked: TensorRequest) -> Tensors:
    """Return the entities of each text as a JSON list, because their number differs between texts."""
    reply = await tagged(asked.call, asked.served, asked.given, asked.parameters)
    return {"entities": [[orjson.dumps(of_text).decode()] for of_text in reply.answers]}, reply.headers


async def _answered(asked: TensorRequest) -> Tensors:
    """Return the answers to each question, best first."""
    top_k, search = asked.parameters.top_k or 1, asked.parameters
    reply = await answered(asked.call, asked.served, asked.given, top_k, search)
    most = max(map(len, reply.answers))
    rows = [[*answers, *[_NO_ANSWER] * (most - len(answers))] for answers in reply.answers]
    return {
        "answer": [[one.answer for one in row] for row in rows],
        "score": np.array([[one.score for one in row] for row in rows], dtype=np.float32),
        "start": np.array([[one.start for one in row] for row in rows], dtype=np.int64),
        "end": np.array([[one.end for one in row] for row in rows], dtype=np.int64),
    }, reply.headers


LABELS = AnswerKind(_labelled, ("label", "score"), {"top_k", "truncate"}, house=CLASSIFY)
ENTITIES = AnswerKind(_tagged, ("entities",), fields.TagReading.model_fields, house=TAG)
ANSWERS = AnswerKind(
    _answered, ("answer", "score", "start", "end"), {"top_k", *fields.AnswerSearch.model_fields}, house=ANSWER
)
