"""Similarity of scored pairs: cosines that follow human scores of how similar two texts are.

Shapes: N pairs, H hidden.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from clozeline.artifacts.finetune.model.held_out import HeldOut, write_held_out, write_test_items
from clozeline.artifacts.finetune.shown_item import ShownItem
from clozeline.artifacts.finetune.task_metrics import Headline
from clozeline.records.files.identity import identity_of
from clozeline.tasks.intervals import bootstrap_interval
from clozeline.tasks.scores.correlations import pearson, ranks, spearman
from clozeline.tasks.similarity.baselines import tfidf_cosines
from clozeline.tasks.similarity.on_pairs import OnPairs
from clozeline.tasks.similarity.pairs import Pair, PairCount
from clozeline.tasks.splitting import count_seen
from clozeline.tasks.task import TaskReport, only_answer, shown

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


class ScoredPairs(OnPairs):
    """Similarity of scored pairs, measured by Spearman's correlation of cosines with scores."""

    def validation_score(self) -> float:
        """Return Spearman's correlation; NaN if all cosines are the same."""
        return spearman(_scores(self.pairs.validation), self._cosines(self.pairs.validation)[0])

    def save(self, out: Path) -> None:
        super().save(out)
        for write, pairs in ((write_held_out, self.pairs.validation), (write_test_items, self.pairs.test)):
            write(out, [HeldOut(text=it.first, second=it.second, score=it.score) for it in pairs])

    def test(self) -> TaskReport:
        test = self.pairs.test
        score_N, (cosine_N, num_truncated) = _scores(test), self._cosines(test)
        known = [text for pair in self.pairs.train for text in (pair.first, pair.second)]
        tfidf_N = tfidf_cosines(known, [pair.first for pair in test], [pair.second for pair in test])
        low, high = bootstrap_interval(lambda places: spearman(score_N[places], cosine_N[places]), len(test))
        seen = {identity_of(text) for pair in test for text in (pair.first, pair.second)}
        figures = Figures(
            spearman=_or_nothing(spearman(score_N, cosine_N)),
            spearman_low=_or_nothing(low),
            spearman_high=_or_nothing(high),
            pearson=_or_nothing(pearson(score_N, cosine_N)),
            baseline_tfidf_cosine_spearman=_or_nothing(spearman(score_N, tfidf_N)),
            baseline_tfidf_cosine_pearson=_or_nothing(pearson(score_N, tfidf_N)),
            num_train=len(self.pairs.train),
            num_validation=len(self.pairs.validation),
            num_test=len(test),
            num_truncated_train=self.num_truncated_train,
            num_truncated_test=num_truncated,
            num_test_texts_seen_in_pretraining=count_seen(seen, self.inputs.pretraining_text),
            records=self.pairs.count,
        )
        actual, predicted = _fifths(score_N), _fifths(cosine_N)
        return TaskReport(
            headline=_headline(figures),
            figures=asdict(figures),
            confusion=list(zip(actual, predicted, strict=True)),
            examples=shown(self._shown(score_N, cosine_N, actual, predicted), self.params.num_examples),
            test_texts=sorted({text for pair in test for text in (pair.first, pair.second)}),
            train_texts=sorted(known),
            first_places=self.pairs.count.first_places,
            only_answer=only_answer([f"cosine {cosine:.4f}" for cosine in cosine_N], [f"{it:g}" for it in score_N]),
        )

    def _cosines(self, pairs: Sequence[Pair]) -> tuple[Values, int]:
        """Return `cosine_N`, and the number of texts that were cut."""
        firsts_NH, num_first = self.embed([pair.first for pair in pairs])
        seconds_NH, num_second = self.embed([pair.second for pair in pairs])
        return (firsts_NH * seconds_NH).sum(axis=1).astype(np.float64), num_first + num_second

    def _shown(
        self, score_N: Values, cosine_N: Values, actual: Sequence[str], predicted: Sequence[str]
    ) -> list[ShownItem]:
        low, high = self.params.lowest_score, self.params.highest_score
        return [
            ShownItem(
                {"first": pair.first, "second": pair.second},
                f"{low + score * (high - low):g} ({fifth})",
                f"cosine {cosine:.2f} ({grade})",
                fifth == grade,
            )
            for pair, score, cosine, fifth, grade in zip(
                self.pairs.test, score_N.tolist(), cosine_N.tolist(), actual, predicted, strict=True
            )
        ]


def _scores(pairs: Sequence[Pair]) -> Values:
    return np.array([pair.score for pair in pairs], dtype=np.float64)


def _fifths(value_N: Values) -> list[str]:
    """Return the fifth that each value belongs to, by rank."""
    places = np.minimum((ranks(value_N) - 0.5) / len(value_N) * len(_FIFTHS), len(_FIFTHS) - 1).astype(int)
    return [_FIFTHS[place] for place in places.tolist()]


def _or_nothing(correlation: float) -> float:
    """Return the correlation, or 0 for NaN: JSON has no NaN, and constant values carry no information."""
    return correlation if np.isfinite(correlation) else _TRIVIAL_CORRELATION


def _headline(figures: Figures) -> Headline:
    return Headline(
        metric="spearman",
        value=figures.spearman,
        low=figures.spearman_low,
        high=figures.spearman_high,
        baseline="cosine of TF-IDF",
        baseline_value=figures.baseline_tfidf_cosine_spearman,
        trivial="the same for all pairs",
        trivial_value=_TRIVIAL_CORRELATION,
    )
