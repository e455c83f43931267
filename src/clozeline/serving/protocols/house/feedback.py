"""/feedback: the right answer to a request that was answered before."""

from typing import Annotated

from pydantic import BaseModel, Field
from starlette.responses import Response

from clozeline.serving.errors import problem
from clozeline.serving.models.given_answers import REQUEST_ID
from clozeline.serving.protocols.fields import MAX_TEXTS, RequestBody
from clozeline.serving.protocols.operation import ASKED, Call, JsonResponse, Operation


class FeedbackRequest(RequestBody):
    request_id: Annotated[str, Field(description=f"Header `{REQUEST_ID}` of the answer by /classify.")]
    right: Annotated[
        list[str],
        Field(min_length=1, max_length=MAX_TEXTS, description="Right label of each text of that request, in order."),
    ]


class FeedbackResponse(BaseModel):
    model: str
    version: str
    num_right: int = Field(description="Texts whose best label was the right one.")
    num_wrong: int


async def feedback(call: Call, body: FeedbackRequest) -> Response:
    """Counts whether the best label of each text was right. Feedback on a request counts once; no text is stored."""
    given = call.service.given.find(body.request_id)
    if given is None:
        raise problem(
            404,
            "no_such_request",
            "there is no answer to score under this request id",
            given=body.request_id,
            expected=f"the header {REQUEST_ID} of one of the last answers by /classify, not scored before",
            do="send feedback once, and soon after the answer",
            param="request_id",
        )
    if len(body.right) != len(given.labels):
        raise problem(
            422,
            "number_of_labels",
            "each text of the request needs its right label",
            given=f"{len(body.right)} labels",
            expected=f"{len(given.labels)}",
            do="send one label for each text, in the order of the request",
            param="right",
        )
    call.service.given.forget(body.request_id)
    num_right = sum(answered == right for answered, right in zip(given.labels, body.right, strict=True))
    num_wrong = len(given.labels) - num_right
    call.service.metrics.scored(given.model, num_right=num_right, num_wrong=num_wrong)
    response = FeedbackResponse(model=given.model, version=given.version, num_right=num_right, num_wrong=num_wrong)
    return JsonResponse(response.model_dump())


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
