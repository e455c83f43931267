"""Similarity of matching pairs: the nearest of all second texts should be those that match the first text.

Shapes: Q first texts, D second texts, H hidden.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from clozeline.records.finetune import scored_items
from clozeline.records.finetune.scored_items import HeldOut, Ranked, ScoresOf
from clozeline.records.finetune.statistics import Figure, bootstrap_interval
from clozeline.records.finetune.task_metrics import Headline, ShownItem
from clozeline.tasks.report import HeadlineFigure, Places, TaskReport, only_answer
from clozeline.tasks.similarity import data, scored
from clozeline.tasks.similarity.bm25 import bm25, scorer_with_fusion

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
    def of(cls, pairs: Sequence[data.TextPair]) -> Self:
        second = {pair.second_identity: pair.second for pair in pairs}
        place = {identity: place for place, identity in enumerate(second)}
        first = {pair.first_identity: pair.first for pair in pairs}
        belonging: dict[str, set[int]] = {identity: set() for identity in first}
        for pair in pairs:
            belonging[pair.first_identity].add(place[pair.second_identity])
        return cls([*first.values()], [*second.values()], [*second], [sorted(own) for own in belonging.values()])

    def without_other_pairs(self, pairs: Sequence[data.TextPair], chosen: Sequence[int]) -> list[int]:
        """Return the places of first texts whose pairs are all chosen; without any, of those with a chosen pair.

        Args:
            pairs: the pairs that these texts are from.
        """
        place = {identity: place for place, identity in enumerate(dict.fromkeys(it.first_identity for it in pairs))}
        first_P = [place[it.first_identity] for it in pairs]
        kept = {first_P[pair] for pair in chosen}
        others = {first_P[pair] for pair in {*range(len(pairs))}.difference(chosen)}
        return sorted(kept - others or kept)

    def held_out(self, recall_at: int, most: int) -> list[HeldOut]:
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


class BelongingPairs(scored.OnPairs):
    """Similarity of matching pairs, measured by exact search among all second texts of a split."""

    def validation_score(self) -> float:
        """Return recall at `recall_at`."""
        questions = MatchQuestions.of(self.splits.validation)
        found = scored_items.ranked(self._cosines(questions)[0], questions.belonging)
        return float(found.recall_at(self.params.recall_at).mean())

    def held_out(self, items: Sequence[data.TextPair], most: int) -> list[HeldOut]:
        return MatchQuestions.of(items).held_out(self.params.recall_at, most)

    def test(self) -> TaskReport:
        splits, k = self.splits, self.params.recall_at
        questions = MatchQuestions.of(splits.test)
        cosines, num_truncated = self._cosines(questions)
        words = bm25(questions.firsts, questions.seconds)
        found, beside, both = scored_items.ranked_by_each(scorer_with_fusion(cosines, words), questions.belonging)

        def chance(place_Q: Places) -> float:
            belonging = [questions.belonging[place] for place in place_Q.tolist()]
            return scored_items.chance_of_recall(len(questions.seconds), belonging, k)

        figure = HeadlineFigure(
            f"recall_at_{k}",
            _recall(both, k),  # by which `clozeline search` answers
            ("BM25", _recall(beside, k)),
            ("a random order", chance),
            method="fine-tuned encoder together with BM25",
            beside={"fine-tuned encoder alone": _recall(found, k)},
        )

        def headline_on(pairs: Sequence[int]) -> Headline:
            return figure.on(questions.without_other_pairs(splits.test, pairs))

        top = headline_on(range(len(splits.test)))
        shown_first = [questions.seconds[best][:_SHOWN_CHARACTERS] for best in found.best_Q.tolist()]
        matching = [questions.seconds[own[0]] for own in questions.belonging]
        items = [
            ShownItem({"text": text}, right[:_SHOWN_CHARACTERS], f"rank {rank}; ranked first: {best}", rank == 1)
            for text, right, rank, best in zip(
                questions.firsts, matching, found.rank_Q.tolist(), shown_first, strict=True
            )
        ]
        return self.reported(
            self._figures(top, questions, (found, beside, both), num_truncated),
            items,
            headline=top,
            confusion=[(_BEST, _bucket(rank, k)) for rank in found.rank_Q.tolist()],
            test_texts=questions.seconds,
            train_texts=[pair.second for pair in splits.train],
            test_pairs=[f"{pair.first} {pair.second}" for pair in splits.test],
            train_pairs=[f"{pair.first} {pair.second}" for pair in splits.train],
            headline_on=headline_on,
            only_answer=only_answer(shown_first, matching),
        )

    def _figures(
        self, top: Headline, questions: MatchQuestions, ranks: Sequence[Ranked], num_truncated: int
    ) -> dict[str, object]:
        """Return all figures. `ranks`: by the encoder, by words, and by both together."""
        splits, k = self.splits, self.params.recall_at
        found, beside, both = ranks
        low, high = bootstrap_interval(_recall(found, k), len(questions.firsts))
        return {
            "recall": float(found.recall_at(k).mean()),
            "recall_low": low,
            "recall_high": high,
            "recall_at_1": float(found.recall_at(1).mean()),
            "mrr": float(found.reciprocal.mean()),
            "baseline_bm25_recall": top.baseline_value,
            "baseline_bm25_recall_at_1": float(beside.recall_at(1).mean()),
            "baseline_bm25_mrr": float(beside.reciprocal.mean()),
            "hybrid_recall": top.value,
            "hybrid_recall_low": top.low,
            "hybrid_recall_high": top.high,
            "hybrid_lead_low": top.lead_low,  # of hybrid_recall - baseline_bm25_recall, paired by first text
            "hybrid_lead_high": top.lead_high,
            "hybrid_recall_at_1": float(both.recall_at(1).mean()),
            "hybrid_mrr": float(both.reciprocal.mean()),
            "random_order_recall": top.trivial_value,
            **splits.sizes,
            "num_first_texts_test": len(questions.firsts),
            "num_second_texts_test": len(questions.seconds),
            "num_truncated_train": self.num_truncated_train,
            "num_truncated_test": num_truncated,
            # Of second texts.
            "num_test_seen_in_pretraining": self.num_seen(questions.second_identities),
        }

    def _cosines(self, questions: MatchQuestions) -> tuple[ScoresOf, int]:
        """Return a scorer of all second texts by cosine, and the number of texts that were cut."""
        queries_QH, num_first = self.embed(questions.firsts)
        candidates_DH, num_second = self.embed(questions.seconds)
        return scored_items.by_vectors(queries_QH, candidates_DH), num_first + num_second


def _recall(ranks: Ranked, k: int) -> Figure:
    is_found_Q = ranks.recall_at(k)
    return lambda place_Q: float(is_found_Q[place_Q].mean())


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
