"""A task of the kind `similarity`."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from clozeline.params.finetuning.shared import FinetuneParams
from clozeline.params.section import Count, Positive, Rule


class SimilarityParams(FinetuneParams):
    """Vectors of texts whose cosine says how alike they are: learned from scored pairs, or from pairs that belong
    together.
    """

    kind: Literal["similarity"]
    first_field: str
    second_field: str
    score_field: str | None
    """Where a pair's score is; null: pairs have none, and each belongs together."""
    lowest_score: float
    """Of pairs that have nothing in common: a cosine of 0."""
    highest_score: float
    """Of pairs that say the same: a cosine of 1."""
    columns: Annotated[tuple[str, ...], Field(min_length=2)] | None
    """Names of the columns of tab-separated files without a header, in which quotes are characters like others."""
    docstring_field: str | None
    """Or one text, of which both are taken: its first sentence, and all that follows it. Null: two fields."""
    title_field: str | None
    """... and where its qualified name is, which is taken out of both; null: there is none."""
    max_train: Annotated[int, Field(ge=2)] | None
    """At most so many pairs are trained on, chosen by their hashes; null: all."""
    train_length: Annotated[int, Field(ge=8)] | None
    """Texts are cut at so many tokens where they are trained on: more pairs in the same time. Null: at `max_length`."""
    temperature: Positive
    """Of pairs that belong together: their cosines are divided by it before the softmax over a batch."""
    recall_at: Count
    """The headline of such pairs: share of first texts with a second text of theirs among so many nearest ones."""
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
            "docstring_field score_field",
            lambda docstring, score: docstring is None or score is None,
            "`score_field: null` where both texts are taken of one: they belong together",
        ),
        (
            "docstring_field title_field",
            lambda docstring, title: docstring is not None or title is None,
            "`title_field: null`, or a `docstring_field` beside it",
        ),
    )
    measured_by: ClassVar[tuple[str, ...]] = (
        *FinetuneParams.measured_by,
        "first_field",
        "second_field",
        "score_field",
        "lowest_score",
        "highest_score",
        "columns",
        "docstring_field",
        "title_field",
        "recall_at",
    )
