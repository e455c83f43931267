"""Similarity of matching pairs: the nearest of all second texts should be those that match the first text.

Shapes: Q first texts, D second texts, H hidden.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

from clozeline.records.finetune.scored_items import (
    MAX_ITEMS,
    MAX_TEST_ITEMS,
    HeldOut,
    Ranked,
    ScoresOf,
    by_vectors,
    chance_of_recall,
    ranked,
    ranked_by_each,
    write_held_out,
    write_test_items,
)
from clozeline.records.finetune.statistics import Figure, bootstrap_interval, paired_interval
from clozeline.records.finetune.task_metrics import Beside, Headline, ShownItem
from clozeline.tasks.selection import count_seen
from clozeline.tasks.similarity.bm25 import bm25, scorer_with_fusion
from clozeline.tasks.similarity.data import PairCount, TextPair
from clozeline.tasks.similarity.scored import OnPairs
from clozeline.tasks.task import TaskReport, only_answer, shown

_BEST = "1"
_SHOWN_CHARACTERS = 400


@dataclass(frozen=True)
class MatchQuestions:
    """Distinct first and second texts of a split, and for each first text the indices of its matching second texts."""

    firsts: list[str]
    seconds: list[str]
    second_identities: list[str]
    belonging: list[list[int]]

    @classmethod
    def of(cls, pairs: Sequence[TextPair]) -> Self:
        second = {pair.second_identity: pair.second for pair in pairs}
        place = {identity: place for place, identity in enumerate(second)}
        first = {pair.first_identity: pair.first for pair in pairs}
        belonging: dict[str, set[int]] = {identity: set() for identity in first}
        for pair in pairs:
            belonging[pair.first_identity].add(place[pair.second_identity])
        return cls([*first.values()], [*second.values()], [*second], [sorted(own) for own in belonging.values()])

    def without_other_pairs(self, pairs: Sequence[TextPair], chosen: Sequence[int]) -> list[int]:
        """Return the places of first texts whose pairs are all chosen; without any, of those with a chosen pair.

        Args:
            pairs: the pairs that these texts are from.
        """
        place = {identity: place for place, identity in enumerate(dict.fromkeys(it.first_identity for it in pairs))}
        first_P = [place[it.first_identity] for it in pairs]
        kept = {first_P[pair] for pair in chosen}
        others = {first_P[pair] for pair in {*range(len(pairs))}.difference(chosen)}
        return sorted(kept - others or kept)

    def held_out(self, recall_at: int, most: int = MAX_ITEMS) -> list[HeldOut]:
        """Return the first `most` first texts with their matching second texts.

        Candidates are limited to the first match of each first text, because one text could match all second texts.
        Other matches count if they are candidates too.
        """
        kept = self.belonging[:most]
        searched = {own[0] for own in kept}
        right = [tuple(self.seconds[place] for place in own if place in searched) for own in kept]
        return [
            HeldOut(text=first, right=own, recall_at=recall_at) for first, own in zip(self.firsts, right, strict=False)
        ]


@dataclass(frozen=True)
class SearchFigures:
    """Figures in metrics/finetune/<task>.json; shares are 0-1, over the first texts of the test split."""

    recall: float
    """Recall at `recall_at`."""
    recall_low: float
    recall_high: float
    recall_at_1: float
    mrr: float
    baseline_bm25_recall: float
    baseline_bm25_recall_at_1: float
    baseline_bm25_mrr: float
    hybrid_recall: float
    """Recall of the fusion of vectors and BM25, which `clozeline search` uses."""
    hybrid_recall_low: float
    hybrid_recall_high: float
    hybrid_lead_low: float | None
    hybrid_lead_high: float | None
    """`hybrid_lead_low` and `hybrid_lead_high` are the ends of a 95 % interval of hybrid_recall - baseline_bm25_recall,
    paired by first text."""
    hybrid_recall_at_1: float
    hybrid_mrr: float
    random_order_recall: float
    num_train: int
    num_validation: int
    num_test: int
    num_first_texts_test: int
    num_second_texts_test: int
    """Number of texts that are searched."""
    num_truncated_train: int
    num_truncated_test: int
    num_test_seen_in_pretraining: int
    """Number of second texts that the encoder was pre-trained on."""
    records: PairCount


class BelongingPairs(OnPairs):
    """Similarity of matching pairs, measured by exact search among all second texts of a split."""

    def validation_score(self) -> float:
        """Return recall at `recall_at`."""
        questions = MatchQuestions.of(self.pairs.validation)
        found = ranked(self._cosines(questions)[0], questions.belonging)
        return float(found.recall_at(self.params.recall_at).mean())

    def save(self, out: Path) -> None:
        super().save(out)
        recall_at = self.params.recall_at
        write_held_out(out, MatchQuestions.of(self.pairs.validation).held_out(recall_at))
        write_test_items(out, MatchQuestions.of(self.pairs.test).held_out(recall_at, MAX_TEST_ITEMS))

    def test(self) -> TaskReport:
        questions, k = MatchQuestions.of(self.pairs.test), self.params.recall_at
        cosines, num_truncated = self._cosines(questions)
        words = bm25(questions.firsts, questions.seconds)
        found, beside, both = ranked_by_each(scorer_with_fusion(cosines, words), questions.belonging)
        low, high = bootstrap_interval(_recall_on(found, k), len(questions.firsts))

        def headline_on(pairs: Sequence[int]) -> Headline:
            chosen = questions.without_other_pairs(self.pairs.test, pairs)
            chance = chance_of_recall(len(questions.seconds), [questions.belonging[place] for place in chosen], k)
            return _headline(found.of(chosen), beside.of(chosen), both.of(chosen), k, chance)

        top = headline_on(range(len(self.pairs.test)))
        seen = count_seen(questions.second_identities, self.inputs.pretraining_text)
        figures = SearchFigures(
            recall=float(found.recall_at(k).mean()),
            recall_low=low,
            recall_high=high,
            recall_at_1=float(found.recall_at(1).mean()),
            mrr=float(found.reciprocal.mean()),
            baseline_bm25_recall=float(beside.recall_at(k).mean()),
            baseline_bm25_recall_at_1=float(beside.recall_at(1).mean()),
            baseline_bm25_mrr=float(beside.reciprocal.mean()),
            hybrid_recall=top.value,
            hybrid_recall_low=top.low,
            hybrid_recall_high=top.high,
            hybrid_lead_low=top.lead_low,
            hybrid_lead_high=top.lead_high,
            hybrid_recall_at_1=float(both.recall_at(1).mean()),
            hybrid_mrr=float(both.reciprocal.mean()),
            random_order_recall=top.trivial_value,
            num_train=len(self.pairs.train),
            num_validation=len(self.pairs.validation),
            num_test=len(self.pairs.test),
            num_first_texts_test=len(questions.firsts),
            num_second_texts_test=len(questions.seconds),
            num_truncated_train=self.num_truncated_train,
            num_truncated_test=num_truncated,
            num_test_seen_in_pretraining=seen,
            records=self.pairs.count,
        )
        return TaskReport(
            headline=top,
            figures=asdict(figures),
            confusion=[(_BEST, _bucket(rank, k)) for rank in found.rank_Q.tolist()],
            examples=shown(_shown(questions, found), self.params.num_examples),
            test_texts=questions.seconds,
            train_texts=[pair.second for pair in self.pairs.train],
            test_pairs=[f"{pair.first} {pair.second}" for pair in self.pairs.test],
            train_pairs=[f"{pair.first} {pair.second}" for pair in self.pairs.train],
            headline_on=headline_on,
            first_places=self.pairs.count.first_places,
            only_answer=only_answer(
                [questions.seconds[best][:_SHOWN_CHARACTERS] for best in found.best_Q.tolist()],
                [questions.seconds[own[0]] for own in questions.belonging],
            ),
        )

    def _cosines(self, questions: MatchQuestions) -> tuple[ScoresOf, int]:
        """Return a scorer of all second texts by cosine, and the number of texts that were cut."""
        queries_QH, num_first = self.embed(questions.firsts)
        candidates_DH, num_second = self.embed(questions.seconds)
        return by_vectors(queries_QH, candidates_DH), num_first + num_second


def _bucket(rank: int, k: int) -> str:
    """Return the range of ranks, by powers of ten (1, 2-10, 11-100, …), with `k` as an additional bound."""
    if rank == 1:
        return _BEST
    bounds = sorted({k, 10, 100, 1000} - {1})
    below = 1
    for bound in bounds:
        if rank <= bound:
            return f"{below + 1}-{bound}"
        below = bound
    return f"over {below}"


def _shown(questions: MatchQuestions, found: Ranked) -> list[ShownItem]:
    return [
        ShownItem(
            {"text": first},
            questions.seconds[own[0]][:_SHOWN_CHARACTERS],
            f"rank {rank}; ranked first: {questions.seconds[best][:_SHOWN_CHARACTERS]}",
            rank == 1,
        )
        for first, own, rank, best in zip(
            questions.firsts, questions.belonging, found.rank_Q.tolist(), found.best_Q.tolist(), strict=True
        )
    ]


def _recall_on(found: Ranked, k: int) -> Figure:
    is_found_Q = found.recall_at(k)
    return lambda places_Q: float(is_found_Q[places_Q].mean())


def _headline(found: Ranked, beside: Ranked, both: Ranked, k: int, chance: float) -> Headline:
    """Return the recall of vectors and BM25 together, by which `clozeline search` answers, beside each of them."""
    by_words, by_both = _recall_on(beside, k), _recall_on(both, k)
    low, high = bootstrap_interval(by_both, len(both.rank_Q))
    lead_low, lead_high = paired_interval(by_both, by_words, len(both.rank_Q))
    return Headline(
        metric=f"recall_at_{k}",
        value=float(both.recall_at(k).mean()),
        low=low,
        high=high,
        baseline="BM25",
        baseline_value=float(beside.recall_at(k).mean()),
        trivial="a random order",
        trivial_value=chance,
        method="fine-tuned encoder together with BM25",
        lead_low=lead_low,
        lead_high=lead_high,
        beside=(Beside(name="fine-tuned encoder alone", value=float(found.recall_at(k).mean())),),
    )
