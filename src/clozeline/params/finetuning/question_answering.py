"""A task of the kind `question_answering`."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from clozeline.params.finetuning.shared import FinetuneParams
from clozeline.params.section import Count, Rule


class QuestionAnsweringParams(FinetuneParams):
    """The stretch of a context that answers a question, or that nothing there does."""

    kind: Literal["question_answering"]
    question_field: str
    context_field: str
    answers_field: str
    """Of each record: `{text: [...], answer_start: [...]}`, both empty where the context has no answer."""
    stride: Annotated[int, Field(ge=0)]
    """Tokens that two neighbouring windows of a long context have in common."""
    max_question_tokens: Count
    max_answer_tokens: Count
    rules: ClassVar[tuple[Rule, ...]] = (
        *FinetuneParams.rules,
        (
            "max_length max_question_tokens stride",
            lambda length, question, stride: question + stride + 3 < length,
            "a question, the stride and three special tokens within `max_length`: else windows do not move on",
        ),
    )
    measured_by: ClassVar[tuple[str, ...]] = (
        *FinetuneParams.measured_by,
        "question_field",
        "context_field",
        "answers_field",
    )
