"""/fill-mask: the most probable tokens for the masks of a text."""

from collections.abc import Iterator, Sequence
from typing import Annotated

from pydantic import BaseModel, Field
from starlette.responses import Response

from clozeline.inference.encoder import Encoder, Filled
from clozeline.inference.question import AnyQuestion, Question
from clozeline.serving.errors import problem
from clozeline.serving.models.catalogue import Ability
from clozeline.serving.protocols.dataframes import Params, Records, Sent
from clozeline.serving.protocols.fields import (
    MAX_ANSWER_CHARACTERS,
    Inputs,
    ModelName,
    RequestBody,
    Targets,
    TopK,
    Truncate,
    texts_of,
)
from clozeline.serving.protocols.operation import Call, Example, JsonResponse, Operation

DEFAULT_NUM_CANDIDATES = 5

FILLING = Ability(Encoder)


class FillMaskParameters(RequestBody):
    top_k: Annotated[TopK | None, Field(description="Number of candidates for each mask; null: 5.")] = None
    targets: Annotated[
        Targets | None,
        Field(description="Only these words compete; each has to be one token of the model's vocabulary."),
    ] = None


class FillMaskRequest(RequestBody):
    inputs: Inputs
    parameters: FillMaskParameters | None = None
    truncate: Truncate = False
    model: ModelName = None


class Candidate(BaseModel):
    """One token for one mask."""

    score: float = Field(ge=0, le=1, description="Probability over the vocabulary, or over the targets.")
    token: int = Field(ge=0, description="Token id.")
    token_str: str
    sequence: str = Field(description="The text with this mask filled; other masks stay.")


Mask = list[Candidate]
FillMaskResponse = Mask | list[Mask] | list[Mask | list[Mask]]
"""Mirrors the request: one text, or a list of texts. A text with one mask gets its candidates, best first; a text with
several masks gets a list of candidates for each mask."""

FILL_MASK_EXAMPLES = {
    "one mask": Example("The likeliest words", {"inputs": "Return the [MASK] of the list."}),
    "targets": Example(
        "Only some tokens compete",
        {"inputs": "Return the [MASK] of the list.", "parameters": {"targets": ["a", "b"], "top_k": 2}},
    ),
    "several": Example(
        "Several texts, several masks",
        {
            "inputs": ["Return the [MASK] of the list.", "[MASK] a [MASK] to a file."],
            "parameters": {"top_k": 3},
        },
    ),
}


async def fill_mask(call: Call, body: FillMaskRequest) -> Response:
    served = call.served(FILLING, body.model)
    texts = served.model.with_own_masks(texts_of(body.inputs))
    parameters = body.parameters or FillMaskParameters()
    top_k, targets = parameters.top_k or DEFAULT_NUM_CANDIDATES, parameters.targets
    reply = await call.ask(
        served, texts, lambda: filling(served.model, texts, top_k=top_k, targets=targets, truncate=body.truncate)
    )
    identity = served.identity
    count_confidence(call, identity.name, reply.answers)
    best = [words[0].token_str for of_text in reply.answers for words in of_text]
    headers = reply.headers | call.service.given.keep(identity.name, identity.version, best)
    shaped = [masks[0] if len(masks) == 1 else masks for masks in reply.answers]
    return JsonResponse(shaped[0] if isinstance(body.inputs, str) else shaped, headers=headers)


def count_confidence(call: Call, model: str, masks: Sequence[list[list[Filled]]]) -> None:
    call.service.metrics.confident(model, (words[0].score for of_text in masks for words in of_text))


def filling(
    encoder: Encoder, texts: Sequence[str], *, top_k: int, targets: Sequence[str] | None = None, truncate: bool = False
) -> Question[list[list[Filled]]]:
    """Like `Encoder.filling`, with a limit for the answer, which repeats the text for each candidate of each mask.

    Raises:
        ApiError: 422, the answer would be too large.
    """
    asked = encoder.filling(texts, top_k=top_k, targets=targets, truncate=truncate)
    num_candidates = top_k if targets is None else min(top_k, len(targets))
    masks = [len(tokenized.mask_spans) for tokenized in asked.texts]
    num_characters = num_candidates * sum(len(text) * num for text, num in zip(texts, masks, strict=True))
    if num_characters > MAX_ANSWER_CHARACTERS:
        raise problem(
            422,
            "answer_too_large",
            "the answer would be too large",
            given=f"{sum(masks):,} masks, {num_candidates} candidates for each, {num_characters:,} characters together",
            expected=f"at most {MAX_ANSWER_CHARACTERS:,} characters, because each candidate repeats the text",
            do="ask for fewer candidates, or send shorter texts, fewer masks, or several requests",
            param="parameters.top_k",
        )
    return asked


async def records(call: Call, name: str, sent: Sent, params: Params) -> Records:
    """Answer like MLflow's scoring server."""
    served, texts = call.served(FILLING, name), sent.texts()
    model = served.model
    places: list[int] = []  # indices of the texts with masks, known once they are tokenized

    def questions() -> Iterator[AnyQuestion]:
        yield model.embedding(texts, truncate=params.truncate)
        own = model.with_own_masks(texts)
        places.extend(model.with_masks(own, truncate=params.truncate))
        if places:
            masked = [own[place] for place in places]
            yield filling(model, masked, top_k=params.top_k, truncate=params.truncate)

    vectors, *filled = await call.ask_together(served, texts, lambda: list(questions()))
    masks = dict(zip(places, (of_text for reply in filled for of_text in reply.answers), strict=True))
    count_confidence(call, name, list(masks.values()))
    answers = [{"embedding": one_H, "masks": masks.get(place, [])} for place, one_H in enumerate(vectors.answers)]
    return answers, vectors.headers


FILL_MASK = Operation(
    path="/fill-mask",
    answer=fill_mask,
    summary="Fill the masks of a text",
    result_description="Candidates for each mask, best first; one text or a list, as in the request",
    result=FillMaskResponse,
    ability=FILLING,
    body=FillMaskRequest,
    examples=FILL_MASK_EXAMPLES,
)
