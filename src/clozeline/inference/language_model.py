"""Language models: the likeliest tokens at some positions, named by the graph itself, beside embeddings.

Shapes: K likeliest tokens that the graph gives, P predicted positions, X is K or the size of the vocabulary.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from clozeline.inference.batching import Batch
from clozeline.inference.embedder import Embedder
from clozeline.inference.question import Rows

TOP_IDS, TOP_SCORES = "top_ids", "top_scores"
"""Outputs with the likeliest tokens of each predicted position and their probabilities, best first: [P, K]."""
TOP = "top"
"""Name of the output that stacks both on its last axis; token ids are too small to be rounded in float32."""


class LanguageModel(Embedder):
    """A model whose graph gives the likeliest tokens."""

    @property
    def num_named(self) -> int:
        """K; 0 for an older package, whose graph does not give the likeliest tokens."""
        shapes = (output.shape for output in self.manifest.outputs if output.name == TOP_IDS)
        return next((size for _, size in shapes if isinstance(size, int)), 0)

    def _run(self, batch: Batch, *outputs: str) -> list[npt.NDArray[np.float32]]:
        if outputs != (TOP,):
            return super()._run(batch, *outputs)
        ids_PK, scores_PK = super()._run(batch, TOP_IDS, TOP_SCORES)
        return [np.stack([ids_PK.astype(np.float32), scores_PK], axis=2)]


def named(rows_K2: Rows, top_k: int, but: Sequence[int] = ()) -> list[tuple[int, float]]:
    """Return the first `top_k` tokens that the graph gives with their probabilities, without the ids `but`."""
    found = [(int(token_id), float(score)) for token_id, score in rows_K2[: top_k + len(but)]]
    return [one for one in found if one[0] not in but][:top_k]
