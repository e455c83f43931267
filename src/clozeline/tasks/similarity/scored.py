"""Similarity of scored pairs, by vectors or by regression, and the training on pairs that matching pairs share.

Answers follow human scores of how similar two texts are. By regression the model reads both texts of a pair at once and
answers with a score: GLUE has STS-B in this form (Devlin et al. 2018, appendix B.1). Such a model has no vectors to
search with, and needs more pairs than the cosine of two vectors.

Shapes: T texts, H hidden, N pairs, B pairs of a batch, F features.
"""

from abc import abstractmethod
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from clozeline.params.tasks import SimilarityParams
from clozeline.records.finetune import scored_items, statistics, task_metrics
from clozeline.records.reading.streams import identity_of
from clozeline.tasks import formats, heads, report, task
from clozeline.tasks.probe import Probe
from clozeline.tasks.rows import EncodedBatch, Ids, TextRows
from clozeline.tasks.similarity import bm25, data

Values = npt.NDArray[np.float64]
_FIFTHS = ("lowest fifth", "second fifth", "middle fifth", "fourth fifth", "highest fifth")
_LABEL = "similarity"
_REGULARIZATIONS = (0.1, 1.0, 10.0, 100.0)


def each_loss(firsts_BH: Tensor, seconds_BH: Tensor, targets: data.Targets, temperature: float) -> Tensor:
    """Return `loss_B` for vectors of length 1: `cosine_losses` for scored pairs, else `ranking_losses`."""
    if targets.score_B is not None:
        return cosine_losses(firsts_BH, seconds_BH, targets.score_B)
    return ranking_losses(firsts_BH, seconds_BH, targets, temperature)


def cosine_losses(firsts_BH: Tensor, seconds_BH: Tensor, score_B: Tensor) -> Tensor:
    """Return the squared difference of cosine and score (regression objective, Reimers & Gurevych 2019, section 3)."""
    return ((firsts_BH * seconds_BH).sum(dim=1) - score_B) ** 2


def ranking_losses(firsts_BH: Tensor, seconds_BH: Tensor, targets: data.Targets, temperature: float) -> Tensor:
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


class OnPairs(task.Task[data.TextPair]):
    """An embedder trained on pairs. A text's vector is the mean of its last hidden states, normalized to length 1: the
    `sentence_embedding` of the package.
    """

    def __init__(self, inputs: task.InputsOf[SimilarityParams]) -> None:
        splits = data.select(formats.task_records(inputs.params, inputs.data), inputs.params)
        super().__init__(
            inputs, splits, heads.build(inputs.encoder, "feature-extraction", inputs.seed, {}, family=inputs.family)
        )
        pairs, length = splits.train, self.params.train_length or self.params.max_length
        firsts = TextRows.encode([pair.first for pair in pairs], self.opened, length)
        seconds = TextRows.encode([pair.second for pair in pairs], self.opened, length)
        self._targets = data.Targets(
            torch.from_numpy(scores_of(pairs).astype(np.float32)) if self.params.score_field else None,
            _numbers([pair.first_identity for pair in pairs]),
            _numbers([pair.second_identity for pair in pairs]),
        )
        self.feed(firsts, seconds)
        self.num_truncated_train = firsts.num_truncated + seconds.num_truncated

    def batch(self, rows_B: Ids, epoch: int) -> data.PairBatch:
        firsts, seconds = (rows.encoded(rows_B) for rows in self.trained_on)
        places_B = torch.from_numpy(rows_B)
        return data.PairBatch.whole(firsts, seconds, self._targets.each(lambda tensor: tensor[places_B]))

    def loss_sum(self, inputs: data.PairBatch) -> Tensor:
        """Return the loss of this part's pairs. Its gradient is that of the whole batch's loss with respect to this
        part's texts.
        """
        if inputs.is_whole or inputs.targets.score_B is not None:
            own = inputs.targets.each(lambda tensor: tensor[inputs.first : inputs.last])
            return each_loss(*self._both(inputs), own, self.params.temperature).sum()
        with torch.no_grad():
            vectors = {other.first: self._both(other) for other in inputs.others()}
        vectors[inputs.first] = self._both(inputs)
        firsts_BH, seconds_BH = (torch.cat([vectors[first][side] for first in sorted(vectors)]) for side in (0, 1))
        loss_B = each_loss(firsts_BH, seconds_BH, inputs.targets, self.params.temperature)
        return loss_B.sum() - loss_B.detach().sum() + loss_B[inputs.first : inputs.last].detach().sum()

    def embed(self, texts: Sequence[str]) -> tuple[scored_items.Floats, int]:
        """Return `vector_TH`, and the number of texts that were cut at `max_length`."""
        rows = TextRows.encode(texts, self.opened, self.params.max_length)
        return self.outputs(rows, heads.embeddings), rows.num_truncated

    def _both(self, part: data.PairBatch) -> tuple[Tensor, Tensor]:
        firsts, seconds = (side.rows(part.first, part.last) for side in (part.firsts, part.seconds))
        return heads.embeddings(self.model, firsts), heads.embeddings(self.model, seconds)


class OnScores(task.Task[data.TextPair]):
    """Base of the models of scored pairs, measured by Spearman's correlation of their answers with the scores.

    `answer` is the word for the number that the model answers with.
    """

    num_truncated_train: int
    answer: str

    @abstractmethod
    def answers_to(self, pairs: Sequence[data.TextPair]) -> tuple[Values, int]:
        """Return `answer_N`, and the number of texts that were cut."""

    def validation_score(self) -> float:
        """Return Spearman's correlation; NaN if all answers are the same."""
        return scored_items.spearman(scores_of(self.splits.validation), self.answers_to(self.splits.validation)[0])

    def held_out(self, items: Sequence[data.TextPair], most: int) -> list[scored_items.HeldOut]:
        return [scored_items.HeldOut(text=it.first, second=it.second, score=it.score) for it in items]

    def test(self) -> report.TaskReport:
        splits, test = self.splits, self.splits.test
        score_N, (answer_N, num_truncated) = scores_of(test), self.answers_to(test)
        known, texts = ([text for pair in part for text in (pair.first, pair.second)] for part in (splits.train, test))
        tfidf_N = bm25.tfidf_cosines(known, [pair.first for pair in test], [pair.second for pair in test])

        def correlation(given_N: Values) -> statistics.Figure:
            return lambda place_N: scored_items.spearman(score_N[place_N], given_N[place_N])

        figure = report.HeadlineFigure(
            "spearman",
            correlation(answer_N),
            ("cosine of TF-IDF", correlation(tfidf_N)),
            ("the same for all pairs", lambda place_N: 0.0),
            is_paired=False,
        )
        top = figure.on(range(len(test)))
        figures = {
            "spearman": top.value,
            "spearman_low": top.low,
            "spearman_high": top.high,
            "pearson": report.or_zero(scored_items.pearson(score_N, answer_N)),
            "baseline_tfidf_cosine_spearman": top.baseline_value,
            "baseline_tfidf_cosine_pearson": report.or_zero(scored_items.pearson(score_N, tfidf_N)),
            **splits.sizes,
            "num_truncated_train": self.num_truncated_train,
            "num_truncated_test": num_truncated,
            "num_test_texts_seen_in_pretraining": self.num_seen(map(identity_of, texts)),
        }
        actual, predicted = _fifths(score_N), _fifths(answer_N)
        low, high = self.params.lowest_score, self.params.highest_score
        items = [
            task_metrics.ShownItem(
                {"first": pair.first, "second": pair.second},
                f"{low + score * (high - low):g} ({fifth})",
                f"{self.answer} {answer:.2f} ({grade})",
                fifth == grade,
            )
            for pair, score, answer, fifth, grade in zip(
                test, score_N.tolist(), answer_N.tolist(), actual, predicted, strict=True
            )
        ]
        said = [f"{self.answer} {answer:.4f}" for answer in answer_N]
        return self.reported(
            figures,
            items,
            headline=top,
            confusion=list(zip(actual, predicted, strict=True)),
            test_texts=sorted(set(texts)),
            train_texts=sorted(known),
            test_pairs=_whole(test),
            train_pairs=_whole(splits.train),
            scores=list(zip(score_N.tolist(), answer_N.tolist(), strict=True)),
            headline_on=figure.on,
            only_answer=report.only_answer(said, [f"{it:g}" for it in score_N]),
        )


class ScoredPairs(OnPairs, OnScores):
    """A vector for each text; the cosine of two is the answer."""

    answer = "cosine"

    def answers_to(self, pairs: Sequence[data.TextPair]) -> tuple[Values, int]:
        firsts_NH, num_first = self.embed([pair.first for pair in pairs])
        seconds_NH, num_second = self.embed([pair.second for pair in pairs])
        return (firsts_NH * seconds_NH).sum(axis=1).astype(np.float64), num_first + num_second


class ScoredTogether(OnScores):
    """A classifier with one output, trained to the score (0-1) of a pair."""

    answer = "score"
    fitted = "ridge regression on the frozen encoder"

    def __init__(self, inputs: task.InputsOf[SimilarityParams]) -> None:
        params = inputs.params
        splits = data.select(formats.task_records(params, inputs.data), params)
        model = heads.build_classifier(inputs.encoder, [_LABEL], inputs.seed, "regression", inputs.family)
        super().__init__(inputs, splits, model, reads_pairs=True)
        self._train = self._rows(splits.train, params.train_length or params.max_length)
        self._score_T = torch.from_numpy(scores_of(splits.train).astype(np.float32))
        self.feed(self._train)
        self.num_truncated_train = self._train.num_truncated

    def batch(self, rows_B: Ids, epoch: int) -> EncodedBatch:
        targets_B = self._score_T[torch.from_numpy(rows_B)]
        return self._train.encoded(rows_B, with_types=self.with_types, targets_B=targets_B)

    def loss_sum(self, inputs: EncodedBatch) -> Tensor:
        """Return the squared difference of answer and score, summed over the pairs."""
        difference_B: Tensor = heads.logits(self.model, inputs)[:, 0].float() - inputs.targets_B
        return (difference_B**2).sum()

    def fit_head(self) -> None:
        """Fit the output layer by ridge regression on the frozen encoder, as strongly regularized as is best on the
        validation split.
        """
        from sklearn.linear_model import Ridge  # takes two seconds to import

        output = heads.output_layer(self.model)
        train_TF = self.outputs(self._train, heads.features)
        validation_NF = self.outputs(self._rows(self.splits.validation, self.params.max_length), heads.features)
        mean_F = train_TF.mean(axis=0) if output.bias is not None else np.zeros(train_TF.shape[1])
        scale = float((train_TF - mean_F).std()) or 1.0
        probes = []
        for strength in _REGULARIZATIONS:
            fitted = Ridge(strength, fit_intercept=output.bias is not None)
            fitted.fit((train_TF - mean_F) / scale, self._score_T.numpy())
            weight_1F = np.atleast_2d(fitted.coef_) / scale
            probes.append(Probe(weight_1F, np.atleast_1d(fitted.intercept_) - weight_1F @ mean_F))
        score_N = scores_of(self.splits.validation)

        def correlation(probe: Probe) -> float:
            found = scored_items.spearman(score_N, (validation_NF @ probe.weight_CF[0]).astype(np.float64))
            return found if np.isfinite(found) else -1.0

        max(reversed(probes), key=correlation).write_to(output)

    def answers_to(self, pairs: Sequence[data.TextPair]) -> tuple[Values, int]:
        rows = self._rows(pairs, self.params.max_length)
        return self.outputs(rows, heads.logits)[:, 0].astype(np.float64), rows.num_truncated

    def facts(self) -> scored_items.ConfigFacts:
        return scored_items.ConfigFacts(reads_pairs=True)

    def _rows(self, pairs: Sequence[data.TextPair], length: int) -> TextRows:
        seconds = [pair.second for pair in pairs]
        return TextRows.encode([pair.first for pair in pairs], self.opened, length, seconds=seconds)


def _numbers(identities: Sequence[str]) -> Tensor:
    """Return a number for each identity, the same for equal ones."""
    return torch.from_numpy(np.unique(identities, return_inverse=True)[1].astype(np.int64))


def scores_of(pairs: Sequence[data.TextPair]) -> Values:
    return np.array([pair.score for pair in pairs], dtype=np.float64)


def _fifths(value_N: Values) -> list[str]:
    """Return the fifth that each value belongs to, by rank."""
    places = np.minimum((scored_items.ranks(value_N) - 0.5) / len(value_N) * len(_FIFTHS), len(_FIFTHS) - 1).astype(int)
    return [_FIFTHS[place] for place in places.tolist()]


def _whole(pairs: Sequence[data.TextPair]) -> list[str]:
    """Return each pair as one text, the same in either order of its texts."""
    return [" ".join(sorted((pair.first, pair.second), key=str.casefold)) for pair in pairs]
