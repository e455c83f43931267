"""Claim: exact match and F1 equal the results of SQuAD's official script.

No library ships the script any more, so its results for these cases are written here: `evaluate-v2.0.py`, as
`transformers.data.metrics.squad_metrics` was up to transformers 4.57. Each F1 can be worked out by hand from the words.
"""

import itertools
import math
from pathlib import Path

import numpy as np
import pytest
from scipy import stats
from transformers import BertConfig

from clozeline.records.finetune.scored_items import (
    FILE,
    MAX_ITEMS,
    ConfigFacts,
    EntitySpan,
    HeldOut,
    by_vectors,
    chance_of_recall,
    exact_match,
    f1,
    normalized,
    pearson,
    ranked,
    ranked_by_each,
    ranks,
    read_held_out,
    spearman,
    write_held_out,
)
from clozeline.system.errors import ArtifactError
from clozeline.tasks.similarity.bm25 import scorer_with_fusion

NORMALIZED = [
    ("the", ""),
    ("The A An tHe", ""),
    ("The U.S.A.", "usa"),
    (" the  cat\tsat\non\u00a0it ", "cat sat on it"),
    ("mat-like", "matlike"),  # punctuation leaves no space, so the words grow together
    ("a—b", "—b"),  # a dash is no ASCII punctuation, and ends a word
    ("aïoli", "aïoli"),  # a letter with an accent is part of the word, too
    ("snake_case ~`^|", "snakecase"),
    ("İ ß", "i̇ ß"),  # lower case, not case-folded
]
FIGURES = [
    # answers, prediction, exact match, F1
    (("",), "", 1, 1),
    (("",), "house", 0, 0),
    (("The House.",), "house", 1, 1),
    (("red house",), "house", 0, 2 / 3),
    (("big red brick house",), "house here", 0, 1 / 3),
    (("house red",), "red house", 0, 1),  # F1 has no order
    (("apple",), "apple apple", 0, 2 / 3),  # a word counts as often as answer and prediction share it
    (("red house",), "blue boat", 0, 0),
    (("naïve — café",), "naive café", 0, 2 / 5),
    (("the cat and the dog",), "a cat", 0, 1 / 2),  # articles count in neither text
    ((), "", 1, 1),
    ((), "house", 0, 0),
    (("red house", "house"), "the house", 1, 1),
    (("red house", "old brick house"), "house", 0, 2 / 3),
    (("red house", "blue boat"), "red boat", 0, 1 / 2),  # the nearest answer, not the words of all
    (("the", "house"), "", 0, 0),  # an answer of which nothing is left counts only alone
    (("the", "?"), "an", 1, 1),
]


def test_texts_are_normalized_as_in_the_squad_script() -> None:
    assert [normalized(text) for text, _ in NORMALIZED] == [expected for _, expected in NORMALIZED]


def test_figures_equal_those_of_the_squad_script() -> None:
    for answers, said, exact, overlap in FIGURES:
        assert exact_match(answers, said) == exact
        assert f1(answers, said) == pytest.approx(overlap)


DRAW = np.random.default_rng(0)
CASES = {
    "random": (DRAW.normal(size=200), DRAW.normal(size=200)),
    "many ties": (DRAW.integers(0, 6, size=300).astype(float), DRAW.integers(0, 3, size=300).astype(float)),
    "far from zero": (1e6 + DRAW.normal(size=50), DRAW.normal(size=50)),
    "two": (np.array([0.0, 1.0]), np.array([5.0, 3.0])),
}


@pytest.mark.parametrize("name", CASES)
def test_correlations_equal_those_of_scipy_and_constant_values_have_none(name: str) -> None:
    one, other = CASES[name]
    assert pearson(one, other) == pytest.approx(stats.pearsonr(one, other).statistic, abs=1e-9)
    assert spearman(one, other) == pytest.approx(stats.spearmanr(one, other).statistic, abs=1e-9)
    assert ranks(one).tolist() == stats.rankdata(one).tolist()
    for correlation in (pearson, spearman):
        assert math.isnan(correlation(np.full(6, 0.1), np.arange(6.0)))
        assert math.isnan(correlation(np.arange(6.0), np.full(6, 0.1)))


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


def test_ties_count_against_the_right_answer_and_other_matches_do_not() -> None:
    scores_QC = np.array([[1, 1, 0, 0], [0, 0, 0, -1], [3, 3, 2, 1]], np.float32)
    belonging = [[0], [2], [0, 1, 3]]  # other matches of the third query do not lower the rank
    assert ranked(lambda start, stop: scores_QC[start:stop], belonging).rank_Q.tolist() == [2, 3, 1]


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


def test_facts_survive_a_round_trip_through_config_json_and_defaults_add_no_key() -> None:
    for facts in (
        ConfigFacts(),
        ConfigFacts(decision_threshold=0.0),
        ConfigFacts(reads_pairs=True, decision_threshold=0.25, no_answer_margin=-1.5),
    ):
        config = BertConfig()
        facts.add_to(config)
        assert ConfigFacts.of(BertConfig.from_dict(config.to_dict())) == facts
        assert (config.to_dict() == BertConfig().to_dict()) == (facts == ConfigFacts())


ITEMS = [
    HeldOut(text="a é\n“b”", right=("x", "y")),
    HeldOut(text="who?", second="nobody"),
    HeldOut(text="one\u2028two\u2029three\x85four\rfive\x0bsix\x1cseven"),
    HeldOut(text="Oslo", entities=(EntitySpan(start=0, end=4, type="LOC"),)),
]


def test_held_out_items_survive_a_round_trip_in_any_order_and_their_number_is_limited(tmp_path: Path) -> None:
    write_held_out(tmp_path, ITEMS)
    first = (tmp_path / FILE).read_bytes()
    assert sorted(read_held_out(tmp_path), key=str) == sorted(ITEMS, key=str)
    write_held_out(tmp_path, [*reversed(ITEMS), ITEMS[0]])
    assert (tmp_path / FILE).read_bytes() == first
    write_held_out(tmp_path, [HeldOut(text=str(number)) for number in range(2 * MAX_ITEMS)])
    numbers = [int(item.text) for item in read_held_out(tmp_path)]
    assert len(numbers) == MAX_ITEMS
    assert 0.3 < sum(number < MAX_ITEMS for number in numbers) / MAX_ITEMS < 0.7


@pytest.mark.parametrize(
    "line",
    [
        b'{"words": 1}',
        b"",
        b'{"text": "caf\xe9"}',
        b'{"text": "a", "second": "b", "score": NaN}',
        b'{"text": "a", "right": ["b"], "recall_at": 0}',
    ],
)
def test_a_missing_file_gives_no_items_and_a_bad_line_is_named(tmp_path: Path, line: bytes) -> None:
    assert read_held_out(tmp_path) == []
    write_held_out(tmp_path, ITEMS[:1])
    with (tmp_path / FILE).open("ab") as file:
        file.write(line + b"\n")
    with pytest.raises(ArtifactError, match=r"held_out\.jsonl:2"):
        read_held_out(tmp_path)
