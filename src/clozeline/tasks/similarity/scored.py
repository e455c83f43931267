"""Similarity of scored pairs, by vectors or by regression, and the training on pairs that matching pairs share.

Answers follow human scores of how similar two texts are. By regression the model reads both texts of a pair at once and
answers with a score: GLUE has STS-B in this form (Devlin et al. 2018, appendix B.1). Such a model has no vectors to
search with, and needs more pairs than the cosine of two vectors.

Shapes: T texts, H hidden, N pairs, B pairs of a batch, F features.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from clozeline.params.tasks import SimilarityParams
from clozeline.records.finetune.scored_items import (
    ConfigFacts,
    Floats,
    HeldOut,
    pearson,
    ranks,
    spearman,
    write_held_out,
    write_test_items,
)
from clozeline.records.finetune.statistics import bootstrap_interval
from clozeline.records.finetune.task_metrics import Headline, ShownItem
from clozeline.records.reading.streams import identity_of
from clozeline.tasks import heads
from clozeline.tasks.formats import task_records
from clozeline.tasks.probe import Probe
from clozeline.tasks.rows import EncodedBatch, Ids, TargetedBatch, TextRows, training_batches
from clozeline.tasks.selection import count_seen
from clozeline.tasks.similarity.bm25 import tfidf_cosines
from clozeline.tasks.similarity.data import PairBatch, PairCount, PairRows, Pairs, Targets, TextPair, select
from clozeline.tasks.task import (
    InputsOf,
    TaskReport,
    answers,
    measuring_batches,
    num_batches,
    only_answer,
    opened_for,
    shown,
    warn_of_unknown_tokens,
)
from clozeline.training.state import Batch

Values = npt.NDArray[np.float64]
_FIFTHS = ("lowest fifth", "second fifth", "middle fifth", "fourth fifth", "highest fifth")
_TRIVIAL_CORRELATION = 0.0
_LABEL = "similarity"
_REGULARIZATIONS = (0.1, 1.0, 10.0, 100.0)


def each_loss(firsts_BH: Tensor, seconds_BH: Tensor, targets: Targets, temperature: float) -> Tensor:
    """Return `loss_B` for vectors of length 1: `cosine_losses` for scored pairs, else `ranking_losses`."""
    if targets.score_B is not None:
        return cosine_losses(firsts_BH, seconds_BH, targets.score_B)
    return ranking_losses(firsts_BH, seconds_BH, targets, temperature)


def cosine_losses(firsts_BH: Tensor, seconds_BH: Tensor, score_B: Tensor) -> Tensor:
    """Return the squared difference of cosine and score (regression objective, Reimers & Gurevych 2019, section 3)."""
    return ((firsts_BH * seconds_BH).sum(dim=1) - score_B) ** 2


def ranking_losses(firsts_BH: Tensor, seconds_BH: Tensor, targets: Targets, temperature: float) -> Tensor:
    """Return the multiple negatives ranking loss (Henderson et al. 2017, section 4.4), the mean of both directions
    (Radford et al. 2021, section 2.3). Negatives are the other pairs of the batch, except those that share a text.
    """
    cosine_BB = firsts_BH @ seconds_BH.T / temperature
    is_twin_BB = (targets.first_B[:, None] == targets.first_B) | (targets.second_B[:, None] == targets.second_B)
    is_twin_BB = is_twin_BB & ~torch.eye(len(is_twin_BB), dtype=torch.bool, device=is_twin_BB.device)
    cosine_BB = cosine_BB.masked_fill(is_twin_BB, -torch.inf)
    place_B = torch.arange(len(cosine_BB), device=cosine_BB.device)
    there_B = functional.cross_entropy(cosine_BB, place_B, reduction="none")
    back_B = functional.cross_entropy(cosine_BB.T, place_B, reduction="none")
    return (there_B + back_B) / 2


class OnPairs:
    """An embedder trained on pairs. A text's vector is the mean of its last hidden states, normalized to length 1: the
    `sentence_embedding` of the package.
    """

    def __init__(self, inputs: InputsOf[SimilarityParams]) -> None:
        params = inputs.params
        self.inputs, self.params = inputs, params
        self.pairs: Pairs = select(task_records(params, inputs.data), params)
        self.model = heads.build_embedder(inputs.encoder, inputs.seed, inputs.family)
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
        for rows_B, vector_BH in answers(self.model, batches, rows.encoded, heads.embeddings):
            vector_TH[rows_B] = vector_BH.cpu().numpy()
        return vector_TH, rows.num_truncated

    def _rows(self, pairs: Sequence[TextPair]) -> PairRows:
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
        return heads.embeddings(self.model, firsts), heads.embeddings(self.model, seconds)


@dataclass(frozen=True)
class ScoreFigures:
    """Figures of the test split in metrics/finetune/<task>.json."""

    spearman: float
    spearman_low: float
    spearman_high: float
    pearson: float
    baseline_tfidf_cosine_spearman: float
    baseline_tfidf_cosine_pearson: float
    num_train: int
    num_validation: int
    num_test: int
    num_truncated_train: int
    num_truncated_test: int
    num_test_texts_seen_in_pretraining: int
    records: PairCount


class OnScores(ABC):
    """Base of the models of scored pairs, measured by Spearman's correlation of their answers with the scores."""

    inputs: InputsOf[SimilarityParams]
    params: SimilarityParams
    pairs: Pairs
    num_truncated_train: int
    answer: str
    """Word for the number that the model answers with."""

    @abstractmethod
    def answers_to(self, pairs: Sequence[TextPair]) -> tuple[Values, int]:
        """Return `answer_N`, and the number of texts that were cut."""

    def validation_score(self) -> float:
        """Return Spearman's correlation; NaN if all answers are the same."""
        return spearman(scores_of(self.pairs.validation), self.answers_to(self.pairs.validation)[0])

    def hold_out(self, out: Path) -> None:
        """Write validation and test pairs beside the model."""
        for write, pairs in ((write_held_out, self.pairs.validation), (write_test_items, self.pairs.test)):
            write(out, [HeldOut(text=it.first, second=it.second, score=it.score) for it in pairs])

    def test(self) -> TaskReport:
        test = self.pairs.test
        score_N, (answer_N, num_truncated) = scores_of(test), self.answers_to(test)
        known = [text for pair in self.pairs.train for text in (pair.first, pair.second)]
        tfidf_N = tfidf_cosines(known, [pair.first for pair in test], [pair.second for pair in test])

        def headline_on(places: Sequence[int]) -> Headline:
            chosen = np.array(places, dtype=np.int64)
            return _headline(score_N[chosen], answer_N[chosen], tfidf_N[chosen])

        top = headline_on(range(len(test)))
        seen = {identity_of(text) for pair in test for text in (pair.first, pair.second)}
        figures = ScoreFigures(
            spearman=top.value,
            spearman_low=top.low,
            spearman_high=top.high,
            pearson=_or_nothing(pearson(score_N, answer_N)),
            baseline_tfidf_cosine_spearman=top.baseline_value,
            baseline_tfidf_cosine_pearson=_or_nothing(pearson(score_N, tfidf_N)),
            num_train=len(self.pairs.train),
            num_validation=len(self.pairs.validation),
            num_test=len(test),
            num_truncated_train=self.num_truncated_train,
            num_truncated_test=num_truncated,
            num_test_texts_seen_in_pretraining=count_seen(seen, self.inputs.pretraining_text),
            records=self.pairs.count,
        )
        actual, predicted = _fifths(score_N), _fifths(answer_N)
        return TaskReport(
            headline=top,
            figures=asdict(figures),
            confusion=list(zip(actual, predicted, strict=True)),
            examples=shown(self._shown(score_N, answer_N, actual, predicted), self.params.num_examples),
            test_texts=sorted({text for pair in test for text in (pair.first, pair.second)}),
            train_texts=sorted(known),
            test_pairs=_whole(test),
            train_pairs=_whole(self.pairs.train),
            scores=list(zip(score_N.tolist(), answer_N.tolist(), strict=True)),
            headline_on=headline_on,
            first_places=self.pairs.count.first_places,
            only_answer=only_answer(
                [f"{self.answer} {answer:.4f}" for answer in answer_N], [f"{it:g}" for it in score_N]
            ),
        )

    def _shown(
        self, score_N: Values, answer_N: Values, actual: Sequence[str], predicted: Sequence[str]
    ) -> list[ShownItem]:
        low, high = self.params.lowest_score, self.params.highest_score
        return [
            ShownItem(
                {"first": pair.first, "second": pair.second},
                f"{low + score * (high - low):g} ({fifth})",
                f"{self.answer} {answer:.2f} ({grade})",
                fifth == grade,
            )
            for pair, score, answer, fifth, grade in zip(
                self.pairs.test, score_N.tolist(), answer_N.tolist(), actual, predicted, strict=True
            )
        ]


class ScoredPairs(OnPairs, OnScores):
    """A vector for each text; the cosine of two is the answer."""

    answer = "cosine"

    def save(self, out: Path) -> None:
        super().save(out)
        self.hold_out(out)

    def answers_to(self, pairs: Sequence[TextPair]) -> tuple[Values, int]:
        firsts_NH, num_first = self.embed([pair.first for pair in pairs])
        seconds_NH, num_second = self.embed([pair.second for pair in pairs])
        return (firsts_NH * seconds_NH).sum(axis=1).astype(np.float64), num_first + num_second


def scores_of(pairs: Sequence[TextPair]) -> Values:
    return np.array([pair.score for pair in pairs], dtype=np.float64)


def _fifths(value_N: Values) -> list[str]:
    """Return the fifth that each value belongs to, by rank."""
    places = np.minimum((ranks(value_N) - 0.5) / len(value_N) * len(_FIFTHS), len(_FIFTHS) - 1).astype(int)
    return [_FIFTHS[place] for place in places.tolist()]


def _or_nothing(correlation: float) -> float:
    """Return the correlation, or 0 for NaN: JSON has no NaN, and constant values carry no information."""
    return correlation if np.isfinite(correlation) else _TRIVIAL_CORRELATION


def _whole(pairs: Sequence[TextPair]) -> list[str]:
    """Return each pair as one text, the same in either order of its texts."""
    return [" ".join(sorted((pair.first, pair.second), key=str.casefold)) for pair in pairs]


def _headline(score_N: Values, answer_N: Values, tfidf_N: Values) -> Headline:
    low, high = bootstrap_interval(lambda places: spearman(score_N[places], answer_N[places]), len(score_N))
    return Headline(
        metric="spearman",
        value=_or_nothing(spearman(score_N, answer_N)),
        low=_or_nothing(low),
        high=_or_nothing(high),
        baseline="cosine of TF-IDF",
        baseline_value=_or_nothing(spearman(score_N, tfidf_N)),
        trivial="the same for all pairs",
        trivial_value=_TRIVIAL_CORRELATION,
    )


class ScoredTogether(OnScores):
    """A classifier with one output, trained to the score (0-1) of a pair."""

    answer = "score"
    fitted = "ridge regression on the frozen encoder"

    def __init__(self, inputs: InputsOf[SimilarityParams]) -> None:
        params = inputs.params
        self.inputs, self.params = inputs, params
        self.pairs = select(task_records(params, inputs.data), params)
        self.model = heads.build_classifier(inputs.encoder, [_LABEL], inputs.seed, "regression", inputs.family)
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
        return ((heads.class_logits(self.model, inputs.encoded)[:, 0].float() - inputs.targets_B) ** 2).sum()

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

    def answers_to(self, pairs: Sequence[TextPair]) -> tuple[Values, int]:
        rows = self._rows(pairs, self.params.max_length)
        return self._outputs(rows, heads.class_logits)[:, 0].astype(np.float64), rows.num_truncated

    def save(self, out: Path) -> None:
        """Write the model as stock `AutoModelForSequenceClassification` loads it: one label, a regression."""
        ConfigFacts(reads_pairs=True).add_to(self.model.config)
        heads.save(self.model, self.inputs.encoder, self.params.max_length, out, with_types=self._with_types)
        self.hold_out(out)

    def _rows(self, pairs: Sequence[TextPair], length: int) -> TextRows:
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
