"""Claim: exact search gives the result of comparing every pair, and the chance level is right."""

import itertools

import numpy as np
import pytest

from clozeline.records.finetune.scored_items import by_vectors, chance_of_recall, ranked, ranked_by_each
from clozeline.tasks.similarity.bm25 import scorer_with_fusion


def test_ranks_equal_those_from_comparing_every_pair() -> None:
    draw = np.random.default_rng(0)
    queries, candidates = draw.normal(size=(600, 4)).astype(np.float32), draw.normal(size=(90, 4)).astype(np.float32)
    belonging = [sorted(draw.choice(90, size=draw.integers(1, 4), replace=False).tolist()) for _ in range(600)]
    found = ranked(by_vectors(queries, candidates), belonging)
    for query, own in enumerate(belonging):
        scores = [float(queries[query] @ candidate) for candidate in candidates]
        in_order = sorted(range(90), key=lambda place: -scores[place])
        assert found.rank_Q[query] == 1 + min(in_order.index(place) for place in own)
        assert found.best_Q[query] == in_order[0]
    assert found.recall_at(3).mean() == np.mean(found.rank_Q <= 3)
    assert found.reciprocal.mean() == pytest.approx(np.mean([1 / rank for rank in found.rank_Q]))


def test_a_tie_counts_against_the_right_answer() -> None:
    scores = np.array([[1, 1, 0], [0, 0, 0]], dtype=np.float32)
    assert ranked(lambda start, stop: scores[start:stop], [[0], [2]]).rank_Q.tolist() == [2, 3]


def test_other_matches_of_a_query_do_not_lower_the_rank() -> None:
    scores = np.array([[3, 3, 2, 1]], dtype=np.float32)
    assert ranked(lambda start, stop: scores[start:stop], [[0, 1, 3]]).rank_Q.tolist() == [1]


def test_the_fused_search_can_outrank_both_single_searches() -> None:
    vectors = np.array([[0.9, 0.8, 0.1]] * 2, dtype=np.float32)
    words = np.array([[0.0, 2.0, 3.0]] * 2, dtype=np.float32)
    orders = (lambda start, stop: vectors[start:stop], lambda start, stop: words[start:stop])
    *alone, both = (found.rank_Q.tolist() for found in ranked_by_each(scorer_with_fusion(*orders), [[1], [0]]))
    assert (both, alone) == ([1, 2], [[2, 1], [2, 3]])
    assert alone == [ranked(by, [[1], [0]]).rank_Q.tolist() for by in orders]


@pytest.mark.parametrize(("num_own", "k"), [(1, 1), (1, 3), (2, 2), (3, 5), (5, 1), (1, 9)])
def test_the_random_baseline_equals_the_mean_over_all_orders(num_own: int, k: int) -> None:
    hits = [any(place < num_own for place in drawn) for drawn in itertools.combinations(range(6), min(k, 6))]
    assert chance_of_recall(6, [range(num_own)], k) == pytest.approx(np.mean(hits))
