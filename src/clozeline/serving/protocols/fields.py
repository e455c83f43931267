"""Types that the bodies of all protocols share, and the limits of one request."""

import difflib
from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    TypeAdapter,
    ValidationError,
    model_validator,
)
from pydantic_core import PydanticCustomError

from clozeline.serving.protocols.reading import unusable

MAX_TEXTS = 256
MAX_TEXT_CHARACTERS = 100_000
"""Many times what any model reads: a longer text would take seconds to tokenize, only to be cut or refused."""
MAX_TOP_K = 100
MAX_ANSWER_CHARACTERS = 16 * 2**20
"""Limit for the texts in one answer: 100 KB of masks with 100 candidates each would make gigabytes."""
MAX_TIMEOUT_MILLISECONDS = 600_000

TEXT_TAG = "(one text)"
TEXTS_TAG = "(texts)"
PAIR_TAG, PAIRS_TAG = "(one pair)", "(pairs)"
FLAT_TAG, NESTED_TAG, NUMBER_TAG = "(flat)", "(nested)", "(number)"
"""Tags for kinds of values, which pydantic puts into locations of errors. Clients do not see parts in parentheses."""


def _whole(given: object) -> object:
    return int(given) if isinstance(given, float) and given.is_integer() else given


WHOLE: Final = BeforeValidator(_whole)
"""Accepts 5.0 as an integer, as JSON Schema does; strict pydantic refuses it. It comes after the bounds, or these
are missing from the schema."""

Text = Annotated[
    str,
    # Blank text gives a model nothing to read, and tokenizers drop NUL silently.
    Field(min_length=1, max_length=MAX_TEXT_CHARACTERS, pattern=r"^[^\u0000]*[^\u0000\s][^\u0000]*$"),
]
Texts = Annotated[list[Text], Field(min_length=1, max_length=MAX_TEXTS)]


_TEXTS = TypeAdapter(Texts)


def inputs_kind(inputs: object) -> str | None:
    if isinstance(inputs, str):
        return TEXT_TAG
    return TEXTS_TAG if isinstance(inputs, list) else None


def nesting(given: object) -> str | None:
    """Return the tag of a list of lists or of a flat list; None if it is not a list."""
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
    Field(ge=1, description="Number of leading dimensions to keep; each vector is normalized again. null: all."),
    WHOLE,
]
TopK = Annotated[int, Field(ge=1, le=MAX_TOP_K), WHOLE]
Targets = Annotated[list[Text], Field(min_length=1, max_length=MAX_TOP_K)]
ModelName = Annotated[str | None, Field(description="A name from /models; null: the default model of this route.")]
Truncate = Annotated[
    bool, Field(description="Cut off the end of a text that is too long for the model, instead of refusing the text.")
]

TruncationDirection = Annotated[
    Literal["right", "Right"] | None,
    Field(description="End at which long texts are cut; only the right end is supported."),
]
PromptName = Annotated[
    str | None, Field(description="Prompt of the model, put before each text; null: its default prompt, if it has one.")
]
NoPromptName = Annotated[None, Field(description="Always null: texts are tokenized as they are.")]
_MAX_TOKENS = 100_000
NumTokens = Annotated[int, Field(ge=1, le=_MAX_TOKENS), WHOLE]
TokenOverlap = Annotated[int, Field(ge=0, le=_MAX_TOKENS), WHOLE]

TimeoutMilliseconds = Annotated[
    int,
    Field(
        ge=1,
        le=MAX_TIMEOUT_MILLISECONDS,
        description="Milliseconds until the request ends with 504; without it, the timeout of the server applies.",
    ),
]


_COMPARED_CHARACTERS = 100
"""Part of an unknown key that is compared: a very long key would hold up other requests."""


class RequestBody(BaseModel):
    """Strict base of all request bodies: refuses unknown keys, and numbers in quotes."""

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
    """Return `given` as the texts of a request.

    Raises:
        ApiError: 422, an item is not a text; names its place in `param`.
    """
    try:
        return _TEXTS.validate_python(list(given), strict=True)
    except ValidationError as error:
        raise unusable(error.errors(include_url=False), param) from error


def texts_of(inputs: str | list[str]) -> list[str]:
    return [inputs] if isinstance(inputs, str) else inputs
