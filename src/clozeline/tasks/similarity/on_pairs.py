"""Base of both similarity tasks, scored and matching pairs: embedding of texts, and training on pairs.

Shapes: T texts, H hidden, B pairs of a batch.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from clozeline.params import SimilarityParams
from clozeline.tasks import heads
from clozeline.tasks.opening import answers, measuring_batches, num_batches, opened_for, warn_of_unknown_tokens
from clozeline.tasks.reading import task_records
from clozeline.tasks.scores.ranking import Floats
from clozeline.tasks.similarity import head as embedder
from clozeline.tasks.similarity.batches import PairBatch, PairRows
from clozeline.tasks.similarity.losses import each_loss
from clozeline.tasks.similarity.pairs import Pair, Pairs, select
from clozeline.tasks.task import InputsOf
from clozeline.tasks.text_rows import TextRows, training_batches
from clozeline.training.state import Batch


class OnPairs:
    """An embedder trained on pairs. A text's vector is the mean of its last hidden states, normalized to length 1: the
    `sentence_embedding` of the package.
    """

    def __init__(self, inputs: InputsOf[SimilarityParams]) -> None:
        params = inputs.params
        self.inputs, self.params = inputs, params
        self.pairs: Pairs = select(task_records(params, inputs.data), params)
        self.model = embedder.build(inputs.encoder, inputs.seed, inputs.family)
        self._opened = opened_for(self.model, inputs)
        self._train = self._rows(self.pairs.train)
        self.trained_on = (self._train.firsts, self._train.seconds)
        warn_of_unknown_tokens(self._opened, *self.trained_on)
        self.num_truncated_train = self._train.firsts.num_truncated + self._train.seconds.num_truncated
        self.batches_per_epoch = num_batches(len(self._train), inputs)

    def batches_from(self, epoch: int, index: int) -> Iterator[Batch[PairBatch]]:
        """Yield training batches bucketed by length. Seed and epoch decide which pairs are negatives of each other."""
        length_T, params = self._train.length_T, self.params
        return training_batches(length_T, params.batch_size, self.inputs.seed, epoch, index, self._train.batch)

    def loss_sum(self, inputs: PairBatch) -> Tensor:
        """Return the loss of this part's pairs. Its gradient is that of the whole batch's loss with respect to this
        part's texts.
        """
        if inputs.is_whole or inputs.targets.score_B is not None:
            own = inputs.targets.rows(inputs.first, inputs.last)
            return each_loss(*self._both(inputs), own, self.params.temperature).sum()
        with torch.no_grad():
            vectors = {other.first: self._both(other) for other in inputs.others()}
        vectors[inputs.first] = self._both(inputs)
        firsts_BH, seconds_BH = (torch.cat([vectors[first][side] for first in sorted(vectors)]) for side in (0, 1))
        loss_B = each_loss(firsts_BH, seconds_BH, inputs.targets, self.params.temperature)
        return loss_B.sum() - loss_B.detach().sum() + loss_B[inputs.first : inputs.last].detach().sum()

    def save(self, out: Path) -> None:
        """Write the encoder without a head, as stock `AutoModel` loads it."""
        heads.save(self.model, self.inputs.encoder, self.params.max_length, out)

    def embed(self, texts: Sequence[str]) -> tuple[Floats, int]:
        """Return `vector_TH`, and the number of texts that were cut at `max_length`."""
        rows = TextRows.encode(texts, self._opened, self.params.max_length)
        vector_TH = np.zeros((len(texts), self.model.config.hidden_size), dtype=np.float32)
        batches = measuring_batches(rows.length_T, self.inputs)
        for rows_B, vector_BH in answers(self.model, batches, rows.encoded, embedder.embeddings):
            vector_TH[rows_B] = vector_BH.cpu().numpy()
        return vector_TH, rows.num_truncated

    def _rows(self, pairs: Sequence[Pair]) -> PairRows:
        length = self.params.train_length or self.params.max_length
        scores = [pair.score for pair in pairs if pair.score is not None]
        return PairRows(
            firsts=TextRows.encode([pair.first for pair in pairs], self._opened, length),
            seconds=TextRows.encode([pair.second for pair in pairs], self._opened, length),
            score_T=torch.tensor(scores, dtype=torch.float32) if self.params.score_field else None,
            first_T=np.unique([pair.first_identity for pair in pairs], return_inverse=True)[1].astype(np.int64),
            second_T=np.unique([pair.second_identity for pair in pairs], return_inverse=True)[1].astype(np.int64),
        )

    def _both(self, part: PairBatch) -> tuple[Tensor, Tensor]:
        firsts, seconds = (side.rows(part.first, part.last) for side in (part.firsts, part.seconds))
        return embedder.embeddings(self.model, firsts), embedder.embeddings(self.model, seconds)
