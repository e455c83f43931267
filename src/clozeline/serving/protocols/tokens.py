"""text-embeddings-inference's /tokenize and /decode: texts as the first model reads them, and back."""

from typing import Annotated

from fastapi import APIRouter, Body, Request, Response
from fastapi.openapi.models import Example
from pydantic import BaseModel, Discriminator, Field, Tag

from clozeline.inference.manifest import Manifest
from clozeline.serving.bodies import JsonRoute
from clozeline.serving.errors import problem
from clozeline.serving.limits import MAX_TEXTS
from clozeline.serving.models.service import service_of
from clozeline.serving.openapi import answered
from clozeline.serving.protocols.dialects import HUGGING_FACE
from clozeline.serving.protocols.model_prefix import wanted_model
from clozeline.serving.responses import JsonResponse
from clozeline.serving.routes import texts_of
from clozeline.serving.schemas import FLAT_TAG, NESTED_TAG, Inputs, ModelName, PromptName, RequestBody, nesting

router = APIRouter(route_class=JsonRoute, tags=["text-embeddings-inference"])

_MAX_IDS = 65_536
_Ids = Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1, max_length=_MAX_IDS)]


class TokenizeRequest(RequestBody):
    inputs: Inputs
    add_special_tokens: bool = True
    prompt_name: PromptName = None
    model: ModelName = None


class DecodeRequest(RequestBody):
    ids: Annotated[
        Annotated[_Ids, Tag(FLAT_TAG)]
        | Annotated[Annotated[list[_Ids], Field(min_length=1, max_length=MAX_TEXTS)], Tag(NESTED_TAG)],
        Field(description="Token ids of one text, or a list of such."),
        Discriminator(
            nesting, custom_error_type="ids_type", custom_error_message="token ids of one text, or a list of such lists"
        ),
    ]
    skip_special_tokens: bool = True
    model: ModelName = None


class SimpleToken(BaseModel):
    id: int
    text: str
    special: bool
    start: int | None = Field(description="In the text, in characters; null: it was added.")
    stop: int | None


TOKENIZE_EXAMPLES: dict[str, Example] = {
    "one text": {"summary": "One text", "value": {"inputs": "Sort a list."}},
    "several": {
        "summary": "Several texts, without special tokens",
        "value": {"inputs": ["Sort a list.", "Open a file."], "add_special_tokens": False},
    },
}
DECODE_EXAMPLES: dict[str, Example] = {"one text": {"summary": "One text", "value": {"ids": [5, 6, 7]}}}


@router.post(
    "/tokenize",
    summary="Take texts apart into tokens",
    response_model=list[list[SimpleToken]],
    responses=answered("The tokens of each text, also if one text was sent alone", HUGGING_FACE, is_timed=False),
)
async def tokenize(
    request: Request, body: Annotated[TokenizeRequest, Body(openapi_examples=TOKENIZE_EXAMPLES)]
) -> Response:
    service = service_of(request)
    served = service.catalogue.first(wanted_model(request, body.model))
    texts = texts_of(body.inputs)
    pieces = await service.asking.tokenizing(
        request,
        lambda: served.model.tokenizer.pieces(texts, add_special_tokens=body.add_special_tokens),
        sum(map(len, texts)),
    )
    return JsonResponse(pieces, headers=served.identity.headers)


@router.post(
    "/decode",
    summary="Put tokens together to texts",
    response_model=list[str],
    responses=answered("The text of each list of ids", HUGGING_FACE, is_timed=False),
)
async def decode(request: Request, body: Annotated[DecodeRequest, Body(openapi_examples=DECODE_EXAMPLES)]) -> Response:
    service = service_of(request)
    served = service.catalogue.first(wanted_model(request, body.model))
    lists = [ids for ids in body.ids if isinstance(ids, list)] or [[one for one in body.ids if isinstance(one, int)]]
    _check_known(lists, served.model.manifest)
    texts = await service.asking.tokenizing(
        request,
        lambda: [served.model.tokenizer.decode(ids, skip_special_tokens=body.skip_special_tokens) for ids in lists],
        sum(map(len, lists)),
    )
    return JsonResponse(texts, headers=served.identity.headers)


def _check_known(lists: list[list[int]], manifest: Manifest) -> None:
    largest = max(map(max, lists))
    if largest >= manifest.vocab_size:
        raise problem(
            422,
            "unknown_token",
            "the vocabulary of the model is smaller",
            given=largest,
            expected=f"ids from 0 to {manifest.vocab_size - 1}",
            do="send ids that /tokenize gave for this model",
            param="ids",
        )
