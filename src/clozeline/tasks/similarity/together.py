"""Similarity of scored pairs by regression: the model reads both texts of a pair at once and answers with a score.

GLUE has STS-B in this form (Devlin et al. 2018, appendix B.1). The model has no vectors to search with, and
needs more pairs than the cosine of two vectors.

Shapes: N pairs, B pairs of a batch, F features.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from clozeline.artifacts.finetune.model.config_facts import ConfigFacts
from clozeline.params import SimilarityParams
from clozeline.tasks import heads
from clozeline.tasks.classification import head as classifier
from clozeline.tasks.encoded import EncodedBatch, TargetedBatch
from clozeline.tasks.opening import answers, measuring_batches, num_batches, opened_for, warn_of_unknown_tokens
from clozeline.tasks.probe import Probe
from clozeline.tasks.reading import task_records
from clozeline.tasks.scores.correlations import spearman
from clozeline.tasks.similarity.pairs import Pair, select
from clozeline.tasks.similarity.scored import OnScores, Values, scores_of
from clozeline.tasks.task import InputsOf
from clozeline.tasks.text_rows import Ids, TextRows, training_batches
from clozeline.training.state import Batch

_LABEL = "similarity"
_REGULARIZATIONS = (0.1, 1.0, 10.0, 100.0)


class ScoredTogether(OnScores):
    """A classifier with one output, trained to the score (0-1) of a pair."""

    answer = "score"
    fitted = "ridge regression on the frozen encoder"

    def __init__(self, inputs: InputsOf[SimilarityParams]) -> None:
        params = inputs.params
        self.inputs, self.params = inputs, params
        self.pairs = select(task_records(params, inputs.data), params)
        self.model = classifier.build(inputs.encoder, [_LABEL], inputs.seed, "regression", inputs.family)
        self._opened = opened_for(self.model, inputs)
        self._with_types = heads.tells_pairs_apart(self.model)
        self._train = self._rows(self.pairs.train, params.train_length or params.max_length)
        self._score_T = torch.from_numpy(scores_of(self.pairs.train).astype(np.float32))
        self.trained_on = (self._train,)
        warn_of_unknown_tokens(self._opened, *self.trained_on)
        self.num_truncated_train = self._train.num_truncated
        self.batches_per_epoch = num_batches(len(self._train), inputs)

    def batches_from(self, epoch: int, index: int) -> Iterator[Batch[TargetedBatch]]:
        """Yield training batches bucketed by length."""
        length_T, size = self._train.length_T, self.params.batch_size
        return training_batches(length_T, size, self.inputs.seed, epoch, index, self._batch)

    def loss_sum(self, inputs: TargetedBatch) -> Tensor:
        """Return the squared difference of answer and score, summed over the pairs."""
        return ((classifier.class_logits(self.model, inputs.encoded)[:, 0].float() - inputs.targets_B) ** 2).sum()

    def fit_head(self) -> None:
        """Fit the output layer by ridge regression on the frozen encoder, as strongly regularized as is best on the
        validation split.
        """
        from sklearn.linear_model import Ridge  # takes two seconds to import

        output = heads.output_layer(self.model)
        train_TF, validation_NF = (
            self._outputs(rows, heads.features)
            for rows in (self._train, self._rows(self.pairs.validation, self.params.max_length))
        )
        mean_F = train_TF.mean(axis=0) if output.bias is not None else np.zeros(train_TF.shape[1])
        scale = float((train_TF - mean_F).std()) or 1.0
        probes = []
        for strength in _REGULARIZATIONS:
            fitted = Ridge(strength, fit_intercept=output.bias is not None)
            fitted.fit((train_TF - mean_F) / scale, self._score_T.numpy())
            weight_1F = np.atleast_2d(fitted.coef_) / scale
            probes.append(Probe(weight_1F, np.atleast_1d(fitted.intercept_) - weight_1F @ mean_F))
        score_N = scores_of(self.pairs.validation)

        def correlation(probe: Probe) -> float:
            found = spearman(score_N, (validation_NF @ probe.weight_CF[0]).astype(np.float64))
            return found if np.isfinite(found) else -1.0

        max(reversed(probes), key=correlation).write_to(output)

    def answers_to(self, pairs: Sequence[Pair]) -> tuple[Values, int]:
        rows = self._rows(pairs, self.params.max_length)
        return self._outputs(rows, classifier.class_logits)[:, 0].astype(np.float64), rows.num_truncated

    def save(self, out: Path) -> None:
        """Write the model as stock `AutoModelForSequenceClassification` loads it: one label, a regression."""
        ConfigFacts(reads_pairs=True).add_to(self.model.config)
        heads.save(self.model, self.inputs.encoder, self.params.max_length, out, with_types=self._with_types)
        self.hold_out(out)

    def _rows(self, pairs: Sequence[Pair], length: int) -> TextRows:
        seconds = [pair.second for pair in pairs]
        return TextRows.encode([pair.first for pair in pairs], self._opened, length, seconds=seconds)

    def _batch(self, rows_B: Ids) -> TargetedBatch:
        encoded = self._train.encoded(rows_B, with_types=self._with_types)
        return TargetedBatch(encoded, self._score_T[torch.from_numpy(rows_B)])

    def _outputs(self, rows: TextRows, compute: Callable[[heads.TaskModel, EncodedBatch], Tensor]) -> Values:
        """Return what `compute` gives for each pair, with its features or outputs as a second axis."""
        batches = measuring_batches(rows.length_T, self.inputs)
        found = answers(self.model, batches, lambda places: rows.encoded(places, with_types=self._with_types), compute)
        pieces = [(places_B, output_BF.float().cpu().numpy()) for places_B, output_BF in found]
        place_N = np.concatenate([places_B for places_B, _ in pieces])
        outputs_NF: Values = np.concatenate([output_BF for _, output_BF in pieces])
        return outputs_NF[np.argsort(place_N)]
