"""Embedding: a vector for each text, or for each of its tokens.

Shapes: H hidden, L tokens of a text, T texts.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from clozeline.errors import ArtifactError, ParamsError
from clozeline.inference.batching import Batch
from clozeline.inference.open_model import OpenModel, Records, without_padding
from clozeline.inference.question import AnyQuestion, Question, Rows

HIDDEN = "last_hidden_state"
"""Output with the vector of each token, [B, L, H], under transformers' name for it."""


class Embedder(OpenModel):
    """Embeds texts and their tokens."""

    def embed(
        self, texts: Sequence[str], *, truncate: bool = False, prompt_name: str | None = None
    ) -> npt.NDArray[np.float32]:
        """Return a vector of length 1 for each text, [T, H]: its last hidden states, pooled as the model was trained.

        Args:
            prompt_name: one of `manifest.prompts`, put before each text; None: `manifest.default_prompt`.

        Raises:
            ParamsError: the model has no such prompt.
            TextTooLongError: a text is longer than `manifest.max_length` tokens and `truncate` is not set.
        """
        embeddings_TH = np.empty((len(texts), self.manifest.hidden_size), dtype=np.float32)
        for position, embedding_H in enumerate(
            self.answers(self.embedding(texts, truncate=truncate, prompt_name=prompt_name))
        ):
            embeddings_TH[position] = embedding_H
        return embeddings_TH

    def embedding(
        self, texts: Sequence[str], *, truncate: bool = False, prompt_name: str | None = None
    ) -> Question[Rows]:
        """Return the `Question` that `embed` would run. Raises the same errors as `embed`."""
        return Question(
            self.tokenize(self._prompted(texts, prompt_name), truncate=truncate),
            "sentence_embedding",
            lambda _, embedding_H: embedding_H,
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

    def embedding_tokens(
        self, texts: Sequence[str], *, truncate: bool = False, prompt_name: str | None = None
    ) -> Question[Rows]:
        """Return the `Question` that `tokens` would run. Raises the same errors as `tokens`."""
        if not self.embeds_tokens:
            raise ArtifactError(
                f"the package has no {HIDDEN}, only {', '.join(spec.name for spec in self.manifest.outputs)}",
                do="export the model again with this version (`dvc repro export@NAME`)",
            )
        read = self.tokenize(self._prompted(texts, prompt_name), truncate=truncate)
        return Question(read, HIDDEN, lambda _, hidden_LH: hidden_LH)

    def _prompted(self, texts: Sequence[str], name: str | None) -> Sequence[str]:
        """Return the texts with their prompt before each."""
        prompts, name = self.manifest.prompts, name or self.manifest.default_prompt
        if name is None:
            return texts
        if name not in prompts:
            raise ParamsError(
                f"the model has no prompt {name}, only {', '.join(prompts) or 'none'}",
                do="correct the name, or leave it out",
            )
        return [f"{prompts[name]}{text}" for text in texts]

    def split(self, batch: Batch, output: str, values: npt.NDArray[np.float32]) -> list[Rows]:
        if output != HIDDEN:
            return super().split(batch, output, values)
        return without_padding(batch, values)

    def usual(self, texts: Sequence[str]) -> AnyQuestion:
        return self.embedding(texts, truncate=True)

    def records(self, texts: Sequence[str], *, top_k: int, truncate: bool) -> Records:
        return [{"embedding": embedding_H.tolist()} for embedding_H in self.embed(texts, truncate=truncate)]
