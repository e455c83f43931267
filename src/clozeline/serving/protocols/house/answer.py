"""/answer: the answer to a question from a context, under the names of Hugging Face's question-answering."""

from collections.abc import Sequence
from typing import Annotated

from pydantic import BaseModel, Field
from starlette.responses import Response

from clozeline.inference.answerer import Answer as Found
from clozeline.inference.answerer import Answerer, Reading
from clozeline.inference.spans import SpanSearch
from clozeline.inference.tokenization import each_text
from clozeline.serving.errors import problem
from clozeline.serving.models.catalogue import Ability
from clozeline.serving.protocols.dataframes import Params, Records, Sent
from clozeline.serving.protocols.fields import (
    MAX_ANSWER_CHARACTERS,
    ModelName,
    NumTokens,
    RequestBody,
    Text,
    TokenOverlap,
    TopK,
)
from clozeline.serving.protocols.operation import Call, Example, JsonResponse, Operation
from clozeline.serving.scheduling.work import ServedModel

ANSWERING = Ability(Answerer)


class QuestionInputs(RequestBody):
    question: Text
    context: Text


class AnswerSearch(RequestBody):
    handle_impossible_answer: Annotated[
        bool, Field(description="Whether an empty text (no answer) may be returned.")
    ] = False
    max_answer_len: Annotated[NumTokens, Field(description="Maximum number of tokens of an answer.")] = 15
    max_question_len: Annotated[NumTokens, Field(description="Number of tokens to which a longer question is cut.")] = (
        64
    )
    max_seq_len: Annotated[
        NumTokens | None, Field(description="Tokens in a window; null or a larger number: as many as the model reads.")
    ] = None
    doc_stride: Annotated[
        TokenOverlap | None,
        Field(description="Tokens that adjacent windows of a long context share, at most half; null: 128."),
    ] = None
    align_to_words: Annotated[bool, Field(description="Whether answers begin and end with whole words.")] = True

    def spans(self, top_k: int) -> SpanSearch:
        return SpanSearch(
            top_k=top_k,
            max_answer_tokens=self.max_answer_len,
            may_be_unanswerable=self.handle_impossible_answer,
            align_to_words=self.align_to_words,
        )

    def reading(self) -> Reading:
        return Reading(self.max_seq_len, self.doc_stride, self.max_question_len)


class AnswerParameters(AnswerSearch):
    top_k: Annotated[TopK | None, Field(description="Number of answers; above 1, the result is a list; null: 1.")] = (
        None
    )


class AnswerRequest(RequestBody):
    inputs: QuestionInputs
    parameters: AnswerParameters | None = None
    model: ModelName = None


class Answer(BaseModel):
    answer: str = Field(description="Empty if the context has no answer.")
    score: float = Field(ge=0, le=1.001, description="Probability among all spans of the context and no answer.")
    start: int = Field(ge=0, description="First character of the answer in the context.")
    end: int = Field(ge=0)


AnswerResponse = Answer | list[Answer]
"""The best answer; a list, best first, if the request allows more than one."""

_ASKED = {"question": "Where does Maria live?", "context": "Maria Lopez lives in Oslo. She works in Rome."}
ANSWER_EXAMPLES = {
    "one": Example("The best answer", {"inputs": _ASKED}),
    "several": Example(
        "Three answers, which may include no answer",
        {"inputs": _ASKED, "parameters": {"top_k": 3, "handle_impossible_answer": True}},
    ),
}


async def answer(call: Call, body: AnswerRequest) -> Response:
    """A context that is too long for the model is read in overlapping windows and is never cut."""
    served = call.served(ANSWERING, body.model)
    wanted = body.parameters or AnswerParameters()
    top_k = wanted.top_k or 1
    pairs = [(body.inputs.question, body.inputs.context)]
    (answers,), headers = await answered(call, served, pairs, wanted.spans(top_k), wanted.reading())
    identity, best = served.identity, [one.answer for one in answers[:1]]
    headers = headers | call.service.given.keep(identity.name, identity.version, best)
    return JsonResponse(answers[0] if top_k == 1 else answers, headers=headers)


Answered = tuple[list[list[Found]], dict[str, str]]
"""Answers to each question, best first, and headers that name the model."""


async def answered(
    call: Call,
    served: ServedModel[Answerer],
    pairs: Sequence[tuple[str, str]],
    search: SpanSearch,
    reading: Reading | None = None,
) -> Answered:
    """Return the answers to each question with its context. Raises what `Call.ask` raises."""
    reading, texts = reading or Reading(), each_text(pairs)
    reply = await call.ask(served, texts, lambda: served.model.asking(pairs, search=search, reading=reading))
    found = await call.finished(reply, lambda: served.model.best(pairs, reply.answers, search=search), texts)
    call.service.metrics.confident(served.identity.name, (one.score for answers in found for one in answers[:1]))
    return found, reply.headers


def check_answer_size(top_k: int, contexts: Sequence[str], param: str) -> None:
    """Raise ApiError (422) if `top_k` answers from each context could be too large; `param` is the field to name."""
    num_characters = top_k * sum(map(len, contexts))
    if num_characters > MAX_ANSWER_CHARACTERS:
        raise problem(
            422,
            "answer_too_large",
            "the answer could be too large",
            given=f"{top_k} answers to each question, up to {num_characters:,} characters together",
            expected=f"at most {MAX_ANSWER_CHARACTERS:,} characters",
            do="ask for fewer answers, or send several requests",
            param=param,
        )


async def records(call: Call, name: str, sent: Sent, params: Params) -> Records:
    """Answer like MLflow's scoring server."""
    served, pairs = call.served(ANSWERING, name), sent.pairs(("question", "context"))
    check_answer_size(params.top_k, [context for _, context in pairs], "params.top_k")
    found, headers = await answered(call, served, pairs, SpanSearch(top_k=params.top_k))
    return [{"answers": answers} for answers in found], headers


ANSWER = Operation(
    path="/answer",
    answer=answer,
    summary="Answer a question from a context",
    result_description="The best answer, a span of the context, or a list if `top_k` is above 1",
    result=AnswerResponse,
    ability=ANSWERING,
    body=AnswerRequest,
    examples=ANSWER_EXAMPLES,
    place="inputs.question".format,  # a context is never at fault: one of any length is read in windows
)
