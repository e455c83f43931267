"""Embeddings as clients ask for them: fewer dimensions, base64, similarities.

H hidden, S sentences.
"""

import base64
from collections.abc import Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt

from clozeline.inference.embedder import Embedder
from clozeline.serving.errors import problem

Embedding = npt.NDArray[np.float32]
EncodingFormat = Literal["float", "base64"]


def check_dimensions(encoder: Embedder, dimensions: int | None) -> None:
    """Raises ApiError: 422, there are not so many."""
    hidden_size = encoder.manifest.hidden_size
    if dimensions is not None and dimensions > hidden_size:
        raise problem(
            422,
            "too_many_dimensions",
            "the vectors of this model have fewer dimensions",
            given=dimensions,
            expected=f"at most {hidden_size}",
            do="ask for fewer, or leave `dimensions` out",
            param="dimensions",
        )


def encoded(
    embeddings: Sequence[Embedding], dimensions: int | None, encoding_format: EncodingFormat
) -> list[Embedding | str]:
    """Each vector as it is sent; base64 is of little-endian float32."""
    cut = [np.ascontiguousarray(_cut(embedding_H, dimensions)) for embedding_H in embeddings]
    if encoding_format == "float":
        return list(cut)
    return [base64.b64encode(vector.astype("<f4", copy=False).tobytes()).decode("ascii") for vector in cut]


def similarities(embeddings: Sequence[Embedding]) -> list[float]:
    """Cosine of the first of unit vectors with each of the others."""
    source_H, *sentences = embeddings
    cosines_S = np.stack(sentences).astype(np.float64) @ source_H.astype(np.float64)
    return [float(cosine) for cosine in np.clip(cosines_S, -1, 1)]


def _cut(embedding_H: Embedding, dimensions: int | None) -> Embedding:
    if dimensions is None or dimensions == len(embedding_H):
        return embedding_H
    first = embedding_H[:dimensions]
    length = np.linalg.norm(first)
    return first / length if length else first
