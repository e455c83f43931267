"""Tasks of the kind `question_answering`."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from clozeline.params.finetuning.shared import FinetuneParams
from clozeline.params.section import Count, Rule


class QuestionAnsweringParams(FinetuneParams):
    """Tasks that find the span of a context that answers a question, or say that no span does."""

    kind: Literal["question_answering"]
    question_field: str
    context_field: str
    answers_field: str
    """Field of the answers, `{text: [...], answer_start: [...]}`; both lists are empty if the context has no answer."""
    stride: Annotated[int, Field(ge=0)]
    """Number of tokens that two neighbouring windows of a long context share."""
    max_question_tokens: Count
    max_answer_tokens: Count
    rules: ClassVar[tuple[Rule, ...]] = (
        *FinetuneParams.rules,
        (
            "max_length max_question_tokens stride",
            lambda length, question, stride: question + stride + 3 < length,
            "`max_question_tokens` + `stride` + 3 special tokens below `max_length`: otherwise windows do not advance",
        ),
    )

    @property
    def instead_of_causal(self) -> str:
        return "objective `mlm`, because a causal model has not read the context after a word"
