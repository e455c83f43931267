"""/feedback: the right answer to a request that was answered before."""

from collections.abc import Sequence
from typing import Annotated

from pydantic import BaseModel, Field
from starlette.responses import Response

from clozeline.serving.errors import problem
from clozeline.serving.models.given_answers import REQUEST_ID, GivenAnswer
from clozeline.serving.protocols.fields import MAX_TEXTS, RequestBody
from clozeline.serving.protocols.house.tag import TaggedSpan, entities_of
from clozeline.serving.protocols.operation import ASKED, Call, JsonResponse, Operation

_SCORED = "/classify, /tag, /answer or /fill-mask"


class FeedbackRequest(RequestBody):
    request_id: Annotated[str, Field(description=f"Header `{REQUEST_ID}` of an answer by {_SCORED}.")]
    right: Annotated[
        list[str | list[TaggedSpan]],
        Field(
            min_length=1,
            max_length=MAX_TEXTS,
            description="Right answer to each text of that request, in order: a label, or after /tag the list of its "
            "entities; after /answer the one right span; after /fill-mask the right word for each mask.",
        ),
    ]


class FeedbackResponse(BaseModel):
    model: str
    version: str
    num_right: int = Field(description="Answers that were right.")
    num_wrong: int


async def feedback(call: Call, body: FeedbackRequest) -> Response:
    """Counts whether the best answer to each text was right. Feedback on a request counts once; no text is stored."""
    given = call.service.given.find(body.request_id)
    if given is None:
        raise problem(
            404,
            "no_such_request",
            "there is no answer to score under this request id",
            given=body.request_id,
            expected=f"the header {REQUEST_ID} of one of the last answers by {_SCORED}, not scored before",
            do="send feedback once, and soon after the answer",
            param="request_id",
        )
    _check(body.right, given)
    call.service.given.forget(body.request_id)
    num_right = given.num_right([right if isinstance(right, str) else entities_of(right) for right in body.right])
    num_wrong = len(body.right) - num_right
    call.service.metrics.scored(given.model, num_right=num_right, num_wrong=num_wrong)
    response = FeedbackResponse(model=given.model, version=given.version, num_right=num_right, num_wrong=num_wrong)
    return JsonResponse(response.model_dump())


def _check(right: Sequence[str | list[TaggedSpan]], given: GivenAnswer) -> None:
    """Raise ApiError (422) unless there is a right answer of the same kind for each answer."""
    kind = "lists of entities" if given.are_entities else "texts"
    if len(right) != len(given.hashes) or any(isinstance(one, str) == given.are_entities for one in right):
        raise problem(
            422,
            "other_answers",
            "each answer of the request needs its right one",
            given=f"{len(right)}, {sum(isinstance(one, str) for one in right)} of them texts",
            expected=f"{len(given.hashes)} {kind}",
            do="send one for each text, question or mask, in the order of the request",
            param="right",
        )


_REFUSALS = {status: ASKED[status] for status in (400, 401, 408, 413, 415, 422, 503)} | {
    404: "No answer under this request id"
}
FEEDBACK = Operation(
    path="/feedback",
    answer=feedback,
    summary="Tell the right answer to an earlier request",
    result_description="How many of its answers were right",
    tells="nothing",
    refusals=_REFUSALS,
    result=FeedbackResponse,
    body=FeedbackRequest,
)
