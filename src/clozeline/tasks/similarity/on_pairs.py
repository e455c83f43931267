"""What both sorts of similarity have in common: texts become vectors, and pairs of them are learned from.

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
from clozeline.tasks.similarity import head as embedder
from clozeline.tasks.similarity.batches import PairBatch, PairRows
from clozeline.tasks.similarity.losses import each_loss
from clozeline.tasks.similarity.pairs import Pair, Pairs, select
from clozeline.tasks.similarity.ranking import Floats
from clozeline.tasks.similarity.tables import readers
from clozeline.tasks.sources import records_of
from clozeline.tasks.task import TaskInputs
from clozeline.tasks.text_rows import TextRows, training_batches
from clozeline.training.state import Batch


class OnPairs:
    """A text's vector is the mean of its last hidden states, of length 1: the package's `sentence_embedding`."""

    def __init__(self, inputs: TaskInputs) -> None:
        """Read the data and build the model.

        Raises:
            DataError: the data cannot be read, or there is too little of it.
            ArtifactError: the encoder is missing, or its tokenizer was made for another model.
            ParamsError: `max_length` is longer than the encoder can read.
        """
        params = inputs.params
        assert isinstance(params, SimilarityParams)
        self.inputs, self.params = inputs, params
        records = records_of(params, inputs.data, _fields(params), readers(params.columns))
        self.pairs: Pairs = select(records, params)
        self.model = embedder.build(inputs.encoder, inputs.seed)
        self._opened = opened_for(self.model, inputs)
        self._train = self._rows(self.pairs.train)
        self.trained_on = (self._train.firsts, self._train.seconds)
        warn_of_unknown_tokens(self._opened, *self.trained_on)
        self.num_truncated_train = self._train.firsts.num_truncated + self._train.seconds.num_truncated
        self.batches_per_epoch = num_batches(len(self._train), inputs)

    def batches_from(self, epoch: int, index: int) -> Iterator[Batch[PairBatch]]:
        """Buckets of like length: which pairs are each other's negatives is a function of seed and epoch."""
        length_T, params = self._train.length_T, self.params
        return training_batches(length_T, params.batch_size, self.inputs.seed, epoch, index, self._train.batch)

    def loss_sum(self, inputs: PairBatch) -> Tensor:
        """Of this part's pairs; its gradient is that of the whole batch's loss by this part's texts."""
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
        """The encoder alone, as stock `AutoModel` loads it."""
        heads.save(self.model, self.inputs.encoder, self.params.max_length, out)

    def embed(self, texts: Sequence[str]) -> tuple[Floats, int]:
        """`vector_TH`, and how many texts were cut at `max_length`."""
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


def _fields(params: SimilarityParams) -> dict[str, str]:
    """Knob → field, of those that this task reads."""
    knobs = ("docstring_field", "title_field") if params.docstring_field else ("first_field", "second_field")
    named = {knob: getattr(params, knob) for knob in (*knobs, "score_field")}
    return {knob: name for knob, name in named.items() if name is not None}
