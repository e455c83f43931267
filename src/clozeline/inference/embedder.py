"""Embedding: a vector for each text.

Shapes: H hidden, T texts.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from clozeline.inference.open_model import OpenModel, Records
from clozeline.inference.question import AnyQuestion, Question, Rows


class Embedder(OpenModel):
    """Embeds texts."""

    def embed(self, texts: Sequence[str], *, truncate: bool = False) -> npt.NDArray[np.float32]:
        """Return a vector of length 1 for each text, [T, H]: the normalized mean of its last hidden states.

        Raises:
            TextTooLongError: a text is longer than `manifest.max_length` tokens and `truncate` is not set.
        """
        embeddings_TH = np.empty((len(texts), self.manifest.hidden_size), dtype=np.float32)
        for position, embedding_H in enumerate(self.answers(self.embedding(texts, truncate=truncate))):
            embeddings_TH[position] = embedding_H
        return embeddings_TH

    def embedding(self, texts: Sequence[str], *, truncate: bool = False) -> Question[Rows]:
        """Return the `Question` that `embed` would run. Raises the same errors as `embed`."""
        return Question(
            self.tokenize(texts, truncate=truncate), "sentence_embedding", lambda _, embedding_H: embedding_H
        )

    def usual(self, texts: Sequence[str]) -> AnyQuestion:
        return self.embedding(texts, truncate=True)

    def records(self, texts: Sequence[str], *, top_k: int, truncate: bool) -> Records:
        return [{"embedding": embedding_H.tolist()} for embedding_H in self.embed(texts, truncate=truncate)]
