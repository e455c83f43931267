"""Batches of texts of similar length: on a CPU, padding costs as much as text.

Shapes: B texts of a batch, L tokens of the longest.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from clozeline.inference.tokenization import TokenizedText

BATCH_TOKENS = 512
"""Tokens of a batch, including padding. Measured on 2 AVX2 cores: 256-512 is best, 4096 takes 1.6 times as long."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Texts that run through the graph together."""

    positions: tuple[int, ...]
    """Index of each row's text among those given."""
    input_ids_BL: npt.NDArray[np.int64]
    attention_mask_BL: npt.NDArray[np.int64]
    token_type_ids_BL: npt.NDArray[np.int64] | None = None
    """0 in the first text of a pair, 1 in the second; None without pairs."""


def batches(texts: Sequence[TokenizedText], *, pad_id: int, batch_tokens: int) -> Iterator[Batch]:
    """Group `texts` by length, at most `batch_tokens` tokens in a batch, including padding; a longer text runs alone.

    If INT8 activations share one scale in a batch, neighbours change the last digits of an answer. Texts of equal
    length are therefore ordered by content: the same texts in any order give the same batches and the same answers.
    """
    order = sorted(range(len(texts)), key=lambda position: (len(texts[position]), texts[position].ids_L.tobytes()))
    members: list[int] = []
    for position in order:
        if members and len(texts[position]) * (len(members) + 1) > batch_tokens:
            yield padded(texts, members, pad_id)
            members = []
        members.append(position)
    if members:
        yield padded(texts, members, pad_id)


def padded(texts: Sequence[TokenizedText], members: Sequence[int], pad_id: int) -> Batch:
    """Return the texts at the indices `members` as one batch of any size."""
    lengths_B = np.array([len(texts[position]) for position in members])
    attention_mask_BL = (np.arange(lengths_B.max()) < lengths_B[:, None]).astype(np.int64)
    input_ids_BL = np.full(attention_mask_BL.shape, pad_id, dtype=np.int64)
    input_ids_BL[attention_mask_BL == 1] = np.concatenate([texts[position].ids_L for position in members])
    return Batch(tuple(members), input_ids_BL, attention_mask_BL, _types(texts, members, attention_mask_BL))


def _types(
    texts: Sequence[TokenizedText], members: Sequence[int], attention_mask_BL: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64] | None:
    rows = [texts[position].types_L for position in members]
    if all(types_L is None for types_L in rows):
        return None
    types_BL = np.zeros_like(attention_mask_BL)
    for types_of_row_L, types_L in zip(types_BL, rows, strict=True):
        if types_L is not None:
            types_of_row_L[: len(types_L)] = types_L
    return types_BL
