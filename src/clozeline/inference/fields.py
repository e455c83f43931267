"""Parameters of each verb: fill, complete, classify, choose, tag and answer, with their defaults, bounds and meanings.

They are declared here once. The bodies of HTTP requests contain these classes as they are, MLflow's `params` are
`InvocationParams`, and other interfaces read `model_fields`. Names are those of Hugging Face's tasks.
"""

import difflib
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from clozeline.records.package import ScoreFunction

# Many times what any model reads: a longer text would take seconds to tokenize, only to be cut or refused.
MAX_TEXT_CHARACTERS = 100_000
MAX_TOP_K = 100
MAX_NEW_TOKENS = 1024
MAX_STOPS = 4
MAX_STOP_CHARACTERS = 256
# More than any model reads.
MAX_TOKENS = 100_000
# Part of an unknown key that is compared: a very long key would hold up other requests.
_COMPARED_CHARACTERS = 100
# Tag of a token outside of all entities.
OUTSIDE = "O"
TEMPLATE = "This text is about {}."
# Pattern of a template: one place for the label, and no other braces.
ONE_BLANK = r"^[^{}]*\{\}[^{}]*$"
# `none` gives single tokens, `simple` groups neighbours of one type. The others tag whole words: by the first token, by
# the mean of the tokens' scores, or by the token with the largest score.
Aggregation = Literal["none", "simple", "first", "average", "max"]
# Configuration of a dataclass in an answer: clients see the meaning of its fields, not its docstring.
UNDESCRIBED = ConfigDict(json_schema_extra={"description": None})


def _whole(given: object) -> object:
    return int(given) if isinstance(given, float) and given.is_integer() else given


# Accepts 5.0 as an integer, as JSON Schema does; strict pydantic refuses it. It comes after the bounds, or these are
# missing from the schema.
WHOLE = BeforeValidator(_whole)
Text = Annotated[
    str,
    # Blank text gives a model nothing to read, and tokenizers drop NUL silently.
    Field(min_length=1, max_length=MAX_TEXT_CHARACTERS, pattern=r"^[^\u0000]*[^\u0000\s][^\u0000]*$"),
]
TopK = Annotated[int, Field(ge=1, le=MAX_TOP_K), WHOLE]
NumTokens = Annotated[int, Field(ge=1, le=MAX_TOKENS), WHOLE]
TokenOverlap = Annotated[int, Field(ge=0, le=MAX_TOKENS), WHOLE]
ModelName = Annotated[str | None, Field(description="A name from /models; null: the default model of this route.")]
Truncate = Annotated[
    bool, Field(description="Cut off the end of a text that is too long for the model, instead of refusing the text.")
]
NewTokens = Annotated[int, Field(ge=1, le=MAX_NEW_TOKENS), WHOLE]
Temperature = Annotated[float, Field(ge=0, le=100, description="0: the most likely token.", strict=False)]
TopP = Annotated[
    float, Field(gt=0, le=1, description="Draw from the most likely tokens up to this total probability.", strict=False)
]
Seed = Annotated[int, Field(ge=0, lt=2**63, description="The same seed gives the same answer."), WHOLE]
Stop = Annotated[str, Field(min_length=1, max_length=MAX_STOP_CHARACTERS)]
Stops = Annotated[list[Stop], Field(max_length=MAX_STOPS, description="The answer ends before any of these.")]


class StrictModel(BaseModel):
    """Strict base of parameters and of all bodies of requests: refuses unknown keys, and numbers in quotes."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    @model_validator(mode="before")
    @classmethod
    def _no_unknown_key(cls, given: Any) -> Any:
        known = sorted(cls.model_fields)
        unknown = [key for key in given if key not in known] if isinstance(given, dict) else []
        if not unknown:
            return given
        near = difflib.get_close_matches(unknown[0][:_COMPARED_CHARACTERS], known, n=1)
        raise PydanticCustomError(
            "unknown_key",
            "one of: {known}",
            {"key": unknown[0], "known": ", ".join(known), "near": near[0] if near else ""},
        )


class FillMaskParameters(StrictModel):
    top_k: TopK | None = Field(default=None, description="Number of candidates for each mask; null: 5.")
    targets: Annotated[list[Text], Field(min_length=1, max_length=MAX_TOP_K)] | None = Field(
        default=None, description="Only these words compete; each has to be one token of the model's vocabulary."
    )


class CompleteParameters(StrictModel):
    """Names of Hugging Face's text generation."""

    max_new_tokens: NewTokens = 16
    do_sample: bool | None = Field(default=None, description="false: as temperature 0. null: by the temperature.")
    temperature: Temperature | None = None
    top_p: TopP = 1.0
    seed: Seed = 0
    stop: Stops = Field(default_factory=list)
    return_full_text: bool = Field(default=False, description="Put the given text before its continuation.")


class ClassifyParameters(StrictModel):
    top_k: TopK | None = Field(default=None, description="Number of labels for each text; null: 5, or all of `labels`.")
    function_to_apply: ScoreFunction | None = Field(
        default=None,
        description="Function from logits to scores; none: the logits; null: the function used in training.",
    )
    labels: Annotated[list[str], Field(min_length=1)] | None = Field(
        default=None, description="Return only these labels; their scores are still those among all labels."
    )


_LABELS = Field(min_length=1, max_length=MAX_TOP_K, description="For an encoder, each label word must be one token.")
# The pattern is only documented here: serving/zero_shot.py checks it, with a better message.
_TEMPLATE = Field(
    max_length=1_000, description="Sentence with {} in place of the label.", json_schema_extra={"pattern": ONE_BLANK}
)


class ZeroShotParameters(StrictModel):
    candidate_labels: Annotated[list[Text], _LABELS]
    multi_label: bool = Field(default=False, description="Score each label independently; needs an entailment model.")
    hypothesis_template: Annotated[str, _TEMPLATE] = TEMPLATE


class TagReading(StrictModel):
    """How texts of any length are tagged."""

    aggregation_strategy: Aggregation = Field(
        default="simple",
        description="none: single tokens; simple: groups of adjacent tokens of one type; first, average, max: "
        "groups of whole words, tagged by the first token, the mean of the tokens, or the most confident token.",
    )
    stride: TokenOverlap | None = Field(
        default=None, description="Tokens that adjacent windows of a long text share, at most half; null: a quarter."
    )


class TagParameters(TagReading):
    ignore_labels: list[str] = Field(
        default_factory=lambda: [OUTSIDE], max_length=MAX_TOP_K, description="Types to leave out of the answer."
    )


class AnswerSearch(StrictModel):
    """How answers are searched in a context of any length, which is read in windows."""

    handle_impossible_answer: bool = Field(
        default=False, description="Whether an empty text (no answer) may be returned."
    )
    max_answer_len: NumTokens = Field(default=15, description="Maximum number of tokens of an answer.")
    max_question_len: NumTokens = Field(default=64, description="Number of tokens to which a longer question is cut.")
    max_seq_len: NumTokens | None = Field(
        default=None, description="Tokens in a window; null or a larger number: as many as the model reads."
    )
    doc_stride: TokenOverlap | None = Field(
        default=None, description="Tokens that adjacent windows of a long context share, at most half; null: 128."
    )
    align_to_words: bool = Field(default=True, description="Whether answers begin and end with whole words.")


class AnswerParameters(AnswerSearch):
    top_k: TopK | None = Field(default=None, description="Number of answers; above 1, the result is a list; null: 1.")


class InvocationParams(StrictModel):
    top_k: TopK = Field(
        default=5, description="Number of candidates for each mask, labels for each text, or answers to each question."
    )
    truncate: Truncate = False
    model: ModelName = None
