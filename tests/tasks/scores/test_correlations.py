"""Claim: both correlation scores equal SciPy's, also with ties and for constant input."""

import math

import numpy as np
import pytest
from scipy import stats

from clozeline.records.finetune.scored_items import pearson, ranks, spearman

DRAW = np.random.default_rng(0)
CASES = {
    "random": (DRAW.normal(size=200), DRAW.normal(size=200)),
    "many ties": (DRAW.integers(0, 6, size=300).astype(float), DRAW.integers(0, 3, size=300).astype(float)),
    "the same": (np.arange(9.0), np.arange(9.0)),
    "the other way round": (np.arange(9.0), -(np.arange(9.0) ** 3)),
    "far from zero": (1e6 + DRAW.normal(size=50), DRAW.normal(size=50)),
    "two": (np.array([0.0, 1.0]), np.array([5.0, 3.0])),
}


@pytest.mark.parametrize("name", CASES)
def test_correlations_equal_those_of_scipy(name: str) -> None:
    one, other = CASES[name]
    assert pearson(one, other) == pytest.approx(stats.pearsonr(one, other).statistic, abs=1e-9)
    assert spearman(one, other) == pytest.approx(stats.spearmanr(one, other).statistic, abs=1e-9)
    assert ranks(one).tolist() == stats.rankdata(one).tolist()


def test_constant_values_have_no_correlation() -> None:
    for correlation in (pearson, spearman):
        assert math.isnan(correlation(np.full(5, 0.1), np.arange(5.0)))
        assert math.isnan(correlation(np.arange(5.0), np.full(5, 0.1)))
