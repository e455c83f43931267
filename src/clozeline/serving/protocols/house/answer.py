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


class QuestionInputs(RequestBody):
    question: Text
    context: Text


class AnswerSearch(RequestBody):
    handle_impossible_answer: Annotated[
        bool, Field(description="Whether no answer, an empty text, may be the answer.")
    ] = False
    max_answer_len: Annotated[NumTokens, Field(description="Most tokens of an answer.")] = 15
    max_question_len: Annotated[NumTokens, Field(description="A question of more tokens is cut at its end.")] = 64
    max_seq_len: Annotated[
        NumTokens | None, Field(description="Tokens of a window; null, or more than that: as many as the model reads.")
    ] = None
    doc_stride: Annotated[
        TokenOverlap | None,
        Field(description="Tokens that two windows of a long context have in common, at most half; null: 128."),
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
    top_k: Annotated[TopK | None, Field(description="Answers; of more than one, a list comes; null: 1.")] = None


class AnswerRequest(RequestBody):
    inputs: QuestionInputs
    parameters: AnswerParameters | None = None
    model: ModelName = None


class Answer(BaseModel):
    answer: str = Field(description="Empty: the context does not say.")
    score: float = Field(ge=0, le=1.001, description="Probability among all stretches of the context and no answer.")
    start: int = Field(ge=0, description="In the context, in characters.")
    end: int = Field(ge=0)


AnswerResponse = Answer | list[Answer]
"""The best answer, or if more than one was asked for, a list, best first."""

_ASKED = {"question": "Where does Maria live?", "context": "Maria Lopez lives in Oslo. She works in Rome."}
ANSWER_EXAMPLES = {
    "one": Example("The best answer", {"inputs": _ASKED}),
    "several": Example(
        "Three answers, no answer perhaps among them",
        {"inputs": _ASKED, "parameters": {"top_k": 3, "handle_impossible_answer": True}},
    ),
}


async def answer(call: Call, body: AnswerRequest) -> Response:
    """A context longer than the model reads is read in windows that overlap; nothing is cut."""
    served = call.models.answerer(call.wanted(body.model))
    wanted = body.parameters or AnswerParameters()
    top_k = wanted.top_k or 1
    pairs = [(body.inputs.question, body.inputs.context)]
    (answers,), headers = await answered(call, served, pairs, wanted.spans(top_k), wanted.reading())
    return JsonResponse(answers[0] if top_k == 1 else answers, headers=headers)


Answered = tuple[list[list[Found]], dict[str, str]]
"""The answers to each question, best first, and the headers that tell who gave them."""


async def answered(
    call: Call,
    served: ServedModel[Answerer],
    pairs: Sequence[tuple[str, str]],
    search: SpanSearch,
    reading: Reading | None = None,
) -> Answered:
    """Raises as `Call.ask`."""
    reading, texts = reading or Reading(), each_text(pairs)
    reply = await call.ask(served, texts, lambda: served.model.asking(pairs, search=search, reading=reading))
    found = await call.finished(reply, lambda: served.model.best(pairs, reply.answers, search=search), texts)
    call.service.metrics.confident(served.identity.name, (one.score for answers in found for one in answers[:1]))
    return found, reply.headers


def check_answer_size(top_k: int, contexts: Sequence[str], param: str) -> None:
    """Raises ApiError: 422, `top_k` answers from each of these could be too large; `param` asked for so many."""
    num_characters = top_k * sum(map(len, contexts))
    if num_characters > MAX_ANSWER_CHARACTERS:
        raise problem(
            422,
            "answer_too_large",
            "the answer could be too large",
            given=f"{top_k} answers to each question, {num_characters:,} characters of contexts for them together",
            expected=f"at most {MAX_ANSWER_CHARACTERS:,} characters",
            do="ask for fewer answers, or send several requests",
            param=param,
        )


def question_place(number: int) -> str:
    return "inputs.question"  # a context of any length is read in windows


ANSWER = Operation(
    path="/answer",
    answer=answer,
    summary="Answer a question from a context",
    told="The stretch of the context that answers the question; more than one, if asked for",
    result=AnswerResponse,
    body=AnswerRequest,
    examples=ANSWER_EXAMPLES,
    place=question_place,
)
