"""Tasks of the kind `similarity`."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from clozeline.params.finetuning.shared import FinetuneParams
from clozeline.params.section import Count, Positive, Rule


class SimilarityParams(FinetuneParams):
    """Tasks that measure how similar two texts are, by the cosine of their embeddings or by reading both at once."""

    kind: Literal["similarity"]
    first_field: str
    second_field: str
    score_field: str | None
    """Field of a pair's score; null: pairs have no score, and each is a match."""
    lowest_score: float
    """Score of pairs that have nothing in common: cosine 0."""
    highest_score: float
    """Score of pairs with the same meaning: cosine 1."""
    read_together: bool
    """Whether the model reads both texts of a pair at once and answers with a score, as GLUE has it; otherwise it has a
    vector for each text."""
    columns: Annotated[tuple[str, ...], Field(min_length=2)] | None
    """Column names of tab-separated files without a header, in which quotes are ordinary characters."""
    docstring_field: str | None
    """Field of a text that is split into a pair: its first sentence, and the rest. Null: two fields."""
    title_field: str | None
    """Field of the qualified name of that text, which is removed from both; null: none."""
    max_train: Annotated[int, Field(ge=2)] | None
    """Maximum number of training pairs, chosen by their hashes; null: all."""
    train_length: Annotated[int, Field(ge=8)] | None
    """Tokens at which texts are cut in training: more pairs in the same time. Null: `max_length`."""
    temperature: Positive
    """Matching pairs: divisor of their cosines before the softmax over a batch."""
    recall_at: Count
    """Headline metric of matching pairs: share of first texts with a match among this many nearest texts."""
    rules: ClassVar[tuple[Rule, ...]] = (
        *FinetuneParams.rules,
        (
            "lowest_score highest_score",
            lambda low, high: low < high,
            "`lowest_score` below `highest_score`",
        ),
        (
            "train_length max_length",
            lambda train, longest: train is None or train <= longest,
            "`train_length` at most `max_length`, or null",
        ),
        (
            "read_together score_field",
            lambda together, score: not together or score is not None,
            "`score_field` beside `read_together: true`, which learns scores",
        ),
        (
            "docstring_field score_field",
            lambda docstring, score: docstring is None or score is None,
            "`score_field: null` beside `docstring_field`, whose two parts always match",
        ),
        (
            "docstring_field title_field",
            lambda docstring, title: docstring is not None or title is None,
            "`title_field: null`, or a `docstring_field` beside it",
        ),
    )
