"""Embedding: a vector for each text, or for each of its tokens.

Shapes: H hidden, L tokens of a text, T texts.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from clozeline.errors import ArtifactError
from clozeline.inference.batching import Batch
from clozeline.inference.open_model import OpenModel, Records, without_padding
from clozeline.inference.question import AnyQuestion, Question, Rows

HIDDEN = "last_hidden_state"
"""Output with the vector of each token, [B, L, H], under transformers' name for it."""


class Embedder(OpenModel):
    """Embeds texts and their tokens."""

    def embed(self, texts: Sequence[str], *, truncate: bool = False) -> npt.NDArray[np.float32]:
        """Return a vector of length 1 for each text, [T, H]: its last hidden states, pooled as the model was trained.

        Raises:
            TextTooLongError: a text is longer than `manifest.max_length` tokens and `truncate` is not set.
        """
        embeddings_TH = np.empty((len(texts), self.manifest.hidden_size), dtype=np.float32)
        for position, embedding_H in enumerate(self.answers(self.embedding(texts, truncate=truncate))):
            embeddings_TH[position] = embedding_H
        return embeddings_TH

    def embedding(self, texts: Sequence[str], *, truncate: bool = False) -> Question[Rows]:
        """Return the `Question` that `embed` would run. Raises the same errors as `embed`."""
        before = self.manifest.prompts.get(self.manifest.default_prompt or "", "")
        prompted = [f"{before}{text}" for text in texts] if before else texts
        return Question(
            self.tokenize(prompted, truncate=truncate), "sentence_embedding", lambda _, embedding_H: embedding_H
        )

    @property
    def embeds_tokens(self) -> bool:
        """Whether the graph gives a vector for each token; those of older versions do not."""
        return any(spec.name == HIDDEN for spec in self.manifest.outputs)

    def tokens(self, texts: Sequence[str], *, truncate: bool = False) -> list[Rows]:
        """Return the last hidden states of each text, [L, H], special tokens included.

        Raises:
            ArtifactError: the package was exported by an older version, without this output.
            TextTooLongError: a text is longer than `manifest.max_length` tokens and `truncate` is not set.
        """
        return self.answers(self.embedding_tokens(texts, truncate=truncate))

    def embedding_tokens(self, texts: Sequence[str], *, truncate: bool = False) -> Question[Rows]:
        """Return the `Question` that `tokens` would run. Raises the same errors as `tokens`."""
        if not self.embeds_tokens:
            raise ArtifactError(
                "the package gives no vectors of tokens",
                given=f"the outputs {', '.join(spec.name for spec in self.manifest.outputs)}",
                expected=f"{HIDDEN}, which this version exports too",
                do="export the model again (`dvc repro export@NAME`)",
            )
        return Question(self.tokenize(texts, truncate=truncate), HIDDEN, lambda _, hidden_LH: hidden_LH)

    def split(self, batch: Batch, output: str, values: npt.NDArray[np.float32]) -> list[Rows]:
        if output != HIDDEN:
            return super().split(batch, output, values)
        return without_padding(batch, values)

    def usual(self, texts: Sequence[str]) -> AnyQuestion:
        return self.embedding(texts, truncate=True)

    def records(self, texts: Sequence[str], *, top_k: int, truncate: bool) -> Records:
        return [{"embedding": embedding_H.tolist()} for embedding_H in self.embed(texts, truncate=truncate)]
