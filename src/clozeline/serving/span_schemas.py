"""What clients send and get where a model points into a text: entities, and answers to questions.

Names are those of Hugging Face's token-classification and question-answering tasks.
"""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from clozeline.inference.answerer import Reading
from clozeline.inference.entities import OUTSIDE, Aggregation
from clozeline.inference.spans import SpanSearch
from clozeline.serving.limits import MAX_TOP_K
from clozeline.serving.schemas import Inputs, ModelName, RequestBody, Text, TopK

_MAX_TOKENS = 100_000
_Tokens = Annotated[int, Field(ge=1, le=_MAX_TOKENS)]
_Overlap = Annotated[int, Field(ge=0, le=_MAX_TOKENS)]


class TagReading(RequestBody):
    aggregation_strategy: Annotated[
        Aggregation,
        Field(
            description="none: every token; simple: neighbours of one type together; first, average, max: whole words, "
            "by the tag of their first token, of the mean of their tokens, or of the surest."
        ),
    ] = "simple"
    stride: Annotated[
        _Overlap | None,
        Field(description="Tokens that two windows of a long text have in common, at most half; null: a quarter."),
    ] = None


class TagParameters(TagReading):
    ignore_labels: list[str] = Field(
        default_factory=lambda: [OUTSIDE], max_length=MAX_TOP_K, description="Types that are left out."
    )


class TagRequest(RequestBody):
    inputs: Inputs
    parameters: TagParameters | None = None
    model: ModelName = None


class _Place(BaseModel):
    model_config = ConfigDict(extra="forbid")

    score: float = Field(ge=0, le=1.001, description="Mean probability of the tag over its tokens, or words.")
    word: str
    start: int = Field(ge=0, description="In the text, in characters.")
    end: int = Field(ge=0)


class Entity(_Place):
    entity_group: str


class TaggedToken(_Place):
    entity: str
    index: int = Field(ge=0, description="Of the token in the text as it is read, special tokens among them.")


_Tagged = list[Entity] | list[TaggedToken]
TagResponse = _Tagged | list[_Tagged]
"""Mirrors the request: of one text its entities, of several a list for each."""


class QuestionInputs(RequestBody):
    question: Text
    context: Text


class AnswerSearch(RequestBody):
    handle_impossible_answer: Annotated[
        bool, Field(description="Whether no answer, an empty text, may be the answer.")
    ] = False
    max_answer_len: Annotated[_Tokens, Field(description="Most tokens of an answer.")] = 15
    max_question_len: Annotated[_Tokens, Field(description="A question of more tokens is cut at its end.")] = 64
    max_seq_len: Annotated[
        _Tokens | None, Field(description="Tokens of a window; null, or more than that: as many as the model reads.")
    ] = None
    doc_stride: Annotated[
        _Overlap | None,
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
