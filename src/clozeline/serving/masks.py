"""Questions about masks, with a bound for the answer: it has the whole text again for each candidate of each mask."""

from collections.abc import Sequence

from clozeline.inference.encoder import Encoder, Filled
from clozeline.inference.question import Question
from clozeline.serving.errors import problem
from clozeline.serving.limits import MAX_ANSWER_CHARACTERS


def filling(
    encoder: Encoder, texts: Sequence[str], *, top_k: int, targets: Sequence[str] | None = None, truncate: bool = False
) -> Question[list[list[Filled]]]:
    """As `Encoder.filling`; raises the same.

    Raises:
        ApiError: 422, the answer would be too large.
    """
    asked = encoder.filling(texts, top_k=top_k, targets=targets, truncate=truncate)
    num_candidates = top_k if targets is None else min(top_k, len(targets))
    masks = [len(tokenized.mask_spans) for tokenized in asked.texts]
    num_characters = num_candidates * sum(len(text) * num for text, num in zip(texts, masks, strict=True))
    if num_characters > MAX_ANSWER_CHARACTERS:
        raise problem(
            422,
            "answer_too_large",
            "the answer would be too large",
            given=f"{sum(masks):,} masks, {num_candidates} candidates for each, {num_characters:,} characters together",
            expected=f"at most {MAX_ANSWER_CHARACTERS:,} characters: each candidate comes with its whole text",
            do="ask for fewer candidates, or send shorter texts, fewer masks, or several requests",
            param="parameters.top_k",
        )
    return asked
