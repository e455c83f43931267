"""What clients send and get. Names are those of Hugging Face's tasks and of text-embeddings-inference:
`inputs`, `parameters`, `truncate`; `score`, `token`, `token_str`, `sequence`; `label`, `score`.
"""

import difflib
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from fastapi import Header, Path
from fastapi.exceptions import RequestValidationError
from pydantic import (
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    TypeAdapter,
    ValidationError,
    WithJsonSchema,
    model_validator,
)
from pydantic_core import PydanticCustomError

from clozeline.artifacts.evidence import QuantizationScheme
from clozeline.artifacts.manifest import FileRecord, Precision, ScoreFunction, Task
from clozeline.serving.limits import MAX_TEXT_CHARACTERS, MAX_TEXTS, MAX_TIMEOUT_MILLISECONDS, MAX_TOP_K

TEXT_TAG = "(one text)"
TEXTS_TAG = "(texts)"
PAIR_TAG, PAIRS_TAG = "(one pair)", "(pairs)"
FLAT_TAG, NESTED_TAG, NUMBER_TAG = "(flat)", "(nested)", "(number)"
TAGS = (TEXT_TAG, TEXTS_TAG, PAIR_TAG, PAIRS_TAG, FLAT_TAG, NESTED_TAG, NUMBER_TAG)
"""Which kind of value it is, as faults of it are placed; clients hear nothing of that."""

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
ModelPath = Annotated[str, Path(description="A name from /models.", examples=["encoder"])]

TimeoutMilliseconds = Annotated[
    int | None,
    # A header is there or not: no client can send null.
    WithJsonSchema({"type": "integer", "minimum": 1, "maximum": MAX_TIMEOUT_MILLISECONDS}),
    Header(
        alias="x-timeout-ms",
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
        RequestValidationError: naming the one of `param` that is none.
    """
    try:
        return _TEXTS.validate_python(list(given), strict=True)
    except ValidationError as error:
        faults = error.errors(include_url=False)
        raise RequestValidationError([fault | {"loc": (param, *fault["loc"])} for fault in faults]) from error


class FillMaskParameters(RequestBody):
    top_k: Annotated[TopK | None, Field(description="Candidates for each mask; null: 5.")] = None
    targets: Annotated[
        Targets | None,
        Field(description="Only these words compete; each has to be one token of the model's vocabulary."),
    ] = None


class FillMaskRequest(RequestBody):
    inputs: Inputs
    parameters: FillMaskParameters | None = None
    truncate: Truncate = False
    model: ModelName = None


class EmbedRequest(RequestBody):
    inputs: Inputs
    normalize: Annotated[
        Literal[True], Field(description="Vectors have length 1; the graph itself normalizes them.")
    ] = True
    dimensions: Dimensions = None
    encoding_format: Literal["float"] = "float"
    truncate: Truncate = False
    truncation_direction: TruncationDirection = None
    prompt_name: PromptName = None
    model: ModelName = None


class Pair(RequestBody):
    """Two texts that are read together, under the names of Hugging Face's pipeline."""

    text: Text
    text_pair: Text


def _labelled_kind(inputs: object) -> str | None:
    first = inputs[0] if isinstance(inputs, list) and inputs else None
    if isinstance(first, dict | Pair):
        return PAIRS_TAG
    return PAIR_TAG if isinstance(inputs, dict | Pair) else inputs_kind(inputs)


_PAIRS = f'a pair of texts, {{"text": …, "text_pair": …}}, or a list of 1 to {MAX_TEXTS} of either'
LabelledInputs = Annotated[
    Annotated[Text, Tag(TEXT_TAG)]
    | Annotated[Texts, Tag(TEXTS_TAG)]
    | Annotated[Pair, Tag(PAIR_TAG)]
    | Annotated[Annotated[list[Pair], Field(min_length=1, max_length=MAX_TEXTS)], Tag(PAIRS_TAG)],
    Field(description=f"One text, {_PAIRS}. Pairs are for models that were trained on pairs."),
    Discriminator(
        _labelled_kind,
        custom_error_type="inputs_type",
        custom_error_message=f"a text, {_PAIRS}",
    ),
]


class ClassifyParameters(RequestBody):
    top_k: Annotated[TopK | None, Field(description="Labels for each text; null: 5, or all of `labels`.")] = None
    function_to_apply: Annotated[
        ScoreFunction | None,
        Field(description="From logits to scores; none: the logits themselves; null: as the model was trained."),
    ] = None
    labels: Annotated[
        Annotated[list[str], Field(min_length=1)] | None,
        Field(description="Answer with these labels only; their scores stay what they are among all."),
    ] = None


class ClassifyRequest(RequestBody):
    inputs: LabelledInputs
    parameters: ClassifyParameters | None = None
    truncate: Truncate = False
    model: ModelName = None


class Candidate(BaseModel):
    """One token for one mask."""

    score: float = Field(ge=0, le=1, description="Probability among the vocabulary, or among the targets.")
    token: int = Field(ge=0, description="Id in the vocabulary.")
    token_str: str
    sequence: str = Field(description="The text with this mask filled; other masks stay.")


Mask = list[Candidate]
FillMaskResponse = Mask | list[Mask] | list[Mask | list[Mask]]
"""Mirrors the request: one text, or a list of them; of a text with one mask its candidates, best first;
of a text with several masks a list of candidates for each."""

EmbedResponse = list[list[float]]
"""One vector for each text, also if one text was sent alone."""


class LabelScore(BaseModel):
    label: str
    score: float = Field(
        description="Probability among all labels, or of a model of several labels a text, of this one; unless another "
        "`function_to_apply` was asked for."
    )


ClassifyResponse = list[list[LabelScore]]
"""For each text its likeliest labels, best first, also if one text was sent alone."""


class Health(BaseModel):
    status: Literal["live", "ready"]


class ModelCard(BaseModel):
    """One served model, and where its bytes come from."""

    name: str = Field(description="For `model` in a request.")
    source: str = Field(description="The registry URI or folder that it was loaded from.")
    version: str
    sha256: str = Field(description="Of the graph that answers.")
    task: Task
    routes: list[str]
    precision: Precision = Field(description="Of the graph that answers.")
    precision_reason: str = Field(description="Why this one of the two: asked for, found faster here, …")
    family: str
    max_length: int = Field(description="Longest text in tokens, special tokens among them.")
    vocab_size: int
    hidden_size: int
    mask_token: str | None
    labels: list[str]
    label_scores: ScoreFunction = Field(description="From a classifier's logits to scores, if nothing else is asked.")
    decision_threshold: float | None = Field(
        description="Above which score a label is given, where a text can have several; null: the best one is."
    )
    reads_pairs: bool = Field(description="Whether a classifier was trained on two texts at a time, as /rerank asks.")
    quantization: QuantizationScheme | None = Field(description="Of the INT8 graph; null if the package has none.")
    opset: int
    versions: dict[str, str] = Field(description="Of the packages that exported it.")
    lock_sha256: str = Field(description="Of the requirements lock that it was exported with.")
    files: dict[str, FileRecord]


class ModelList(BaseModel):
    models: list[ModelCard]
