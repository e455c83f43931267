"""What the bodies of every protocol are made of, and how much one request may ask for."""

import difflib
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, TypeAdapter, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from clozeline.serving.protocols.reading import unusable

MAX_TEXTS = 256
MAX_TEXT_CHARACTERS = 100_000
"""Many times what any model reads: a text beyond it would only be tokenized, for seconds, to be cut or refused."""
MAX_TOP_K = 100
MAX_ANSWER_CHARACTERS = 16 * 2**20
"""Of the texts in the answer to one request: 100 KB of masks with 100 candidates each would be told in gigabytes."""
MAX_TIMEOUT_MILLISECONDS = 600_000

TEXT_TAG = "(one text)"
TEXTS_TAG = "(texts)"
PAIR_TAG, PAIRS_TAG = "(one pair)", "(pairs)"
FLAT_TAG, NESTED_TAG, NUMBER_TAG = "(flat)", "(nested)", "(number)"
"""Which kind of value it is, as faults of it are placed; clients hear nothing of what stands in brackets."""

Text = Annotated[
    str,
    # A model has nothing to read in blank text, and tokenizers drop NUL without a word.
    Field(min_length=1, max_length=MAX_TEXT_CHARACTERS, pattern=r"^[^\u0000]*[^\u0000\s][^\u0000]*$"),
]
Texts = Annotated[list[Text], Field(min_length=1, max_length=MAX_TEXTS)]


_TEXTS = TypeAdapter(Texts)


def inputs_kind(inputs: object) -> str | None:
    if isinstance(inputs, str):
        return TEXT_TAG
    return TEXTS_TAG if isinstance(inputs, list) else None


def nesting(given: object) -> str | None:
    """Whether a list is one of lists; None: it is no list."""
    if not isinstance(given, list):
        return None
    return NESTED_TAG if given and isinstance(given[0], list) else FLAT_TAG


Inputs = Annotated[
    Annotated[Text, Tag(TEXT_TAG)] | Annotated[Texts, Tag(TEXTS_TAG)],
    Field(description=f"One text, or a list of 1 to {MAX_TEXTS} texts."),
    Discriminator(
        inputs_kind,
        custom_error_type="inputs_type",
        custom_error_message=f"a text, or a list of 1 to {MAX_TEXTS} texts",
    ),
]
Dimensions = Annotated[
    int | None,
    Field(ge=1, description="Keep the first so many numbers of each vector, and make its length 1 again; null: all."),
]
TopK = Annotated[int, Field(ge=1, le=MAX_TOP_K)]
Targets = Annotated[list[Text], Field(min_length=1, max_length=MAX_TOP_K)]
ModelName = Annotated[
    str | None, Field(description="A name from /models; null: the first model there that answers this route.")
]
Truncate = Annotated[
    bool, Field(description="Cut a text that is longer than the model reads at its end, instead of refusing it.")
]

TruncationDirection = Annotated[
    Literal["right", "Right"] | None, Field(description="Which end of a long text is cut off; only the right one is.")
]
PromptName = Annotated[None, Field(description="No model has prompts.")]
_MAX_TOKENS = 100_000
NumTokens = Annotated[int, Field(ge=1, le=_MAX_TOKENS)]
TokenOverlap = Annotated[int, Field(ge=0, le=_MAX_TOKENS)]

TimeoutMilliseconds = Annotated[
    int,
    Field(
        ge=1,
        le=MAX_TIMEOUT_MILLISECONDS,
        description="Answer within so many milliseconds, or with 504; without it, the server's own limit holds.",
    ),
]


_COMPARED_CHARACTERS = 100
"""Of a key that is not known: to compare a very long one would hold up other requests."""


class RequestBody(BaseModel):
    """Nothing is guessed: a key that is not known, or a number in quotes, is refused."""

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


def checked_texts(given: Sequence[Any], param: str) -> list[str]:
    """`given` as the texts of a request.

    Raises:
        ApiError: 422, naming the one of `param` that is none.
    """
    try:
        return _TEXTS.validate_python(list(given), strict=True)
    except ValidationError as error:
        raise unusable(error.errors(include_url=False), param) from error


def texts_of(inputs: str | list[str]) -> list[str]:
    return [inputs] if isinstance(inputs, str) else inputs
