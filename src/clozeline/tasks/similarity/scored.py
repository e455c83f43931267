"""Similarity of scored pairs: answers that follow human scores of how similar two texts are.

Shapes: N pairs, H hidden.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from clozeline.artifacts.finetune.model.held_out import HeldOut, write_held_out, write_test_items
from clozeline.artifacts.finetune.shown_item import ShownItem
from clozeline.artifacts.finetune.task_metrics import Headline
from clozeline.params import SimilarityParams
from clozeline.records.files.identity import identity_of
from clozeline.tasks.intervals import bootstrap_interval
from clozeline.tasks.scores.correlations import pearson, ranks, spearman
from clozeline.tasks.similarity.baselines import tfidf_cosines
from clozeline.tasks.similarity.on_pairs import OnPairs
from clozeline.tasks.similarity.pairs import Pair, PairCount, Pairs
from clozeline.tasks.splitting import count_seen
from clozeline.tasks.task import InputsOf, TaskReport, only_answer, shown

Values = npt.NDArray[np.float64]

_FIFTHS = ("lowest fifth", "second fifth", "middle fifth", "fourth fifth", "highest fifth")
_TRIVIAL_CORRELATION = 0.0


@dataclass(frozen=True)
class Figures:
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
    def answers_to(self, pairs: Sequence[Pair]) -> tuple[Values, int]:
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
        figures = Figures(
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

    def answers_to(self, pairs: Sequence[Pair]) -> tuple[Values, int]:
        firsts_NH, num_first = self.embed([pair.first for pair in pairs])
        seconds_NH, num_second = self.embed([pair.second for pair in pairs])
        return (firsts_NH * seconds_NH).sum(axis=1).astype(np.float64), num_first + num_second


def scores_of(pairs: Sequence[Pair]) -> Values:
    return np.array([pair.score for pair in pairs], dtype=np.float64)


def _fifths(value_N: Values) -> list[str]:
    """Return the fifth that each value belongs to, by rank."""
    places = np.minimum((ranks(value_N) - 0.5) / len(value_N) * len(_FIFTHS), len(_FIFTHS) - 1).astype(int)
    return [_FIFTHS[place] for place in places.tolist()]


def _or_nothing(correlation: float) -> float:
    """Return the correlation, or 0 for NaN: JSON has no NaN, and constant values carry no information."""
    return correlation if np.isfinite(correlation) else _TRIVIAL_CORRELATION


def _whole(pairs: Sequence[Pair]) -> list[str]:
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
