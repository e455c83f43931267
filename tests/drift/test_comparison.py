"""Distance between the traffic of two periods."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clozeline.orchestration.drift import Limits, Traffic, shifts
from clozeline.records.finetune.statistics import stability_index
from clozeline.system.errors import ParamsError

BOUNDS = ["4.0", "8.0", "16.0", "32.0", "64.0", "+Inf"]
counts = st.fixed_dictionaries(dict.fromkeys(BOUNDS, st.integers(0, 10_000)))


@given(counts, counts)
def test_the_stability_index_is_symmetric_and_never_negative(ours: dict[str, int], theirs: dict[str, int]) -> None:
    index = stability_index(ours, theirs)
    assert index >= 0
    assert index == pytest.approx(stability_index(theirs, ours))
    assert stability_index(ours, ours) == 0


def test_the_stability_index_follows_the_published_formula() -> None:
    """Shares of 0.9 and 0.1 against 0.5 and 0.5, with counts so large that half a count does not matter."""
    index = stability_index({"a": 9_000_000, "b": 1_000_000}, {"a": 5_000_000, "b": 5_000_000})
    assert index == pytest.approx(-0.4 * math.log(5 / 9) + 0.4 * math.log(5), rel=1e-5)


def drawn(seed: int, mean: float) -> dict[str, int]:
    generator = random.Random(seed)
    lengths = [generator.expovariate(1 / mean) for _ in range(1_000)]
    found = dict.fromkeys(BOUNDS, 0)
    for length in lengths:
        found[next(bound for bound in BOUNDS if length <= float(bound))] += 1
    return found


@pytest.mark.parametrize("seed", range(20))
def test_sampling_noise_is_not_drift_but_a_change_in_length_is(seed: int) -> None:
    reference = drawn(1000, mean=12)
    limit = Limits().max_index
    assert stability_index(reference, drawn(seed, mean=12)) < limit / 3
    assert stability_index(reference, drawn(seed, mean=40)) > 2 * limit


def test_each_figure_says_whether_it_is_drift() -> None:
    reference = Traffic(texts_by_length={"8.0": 1_000}, tokens=8_000, unknown_tokens=8)
    now = Traffic(texts_by_length={"8.0": 1_000}, tokens=8_000, unknown_tokens=400)
    length, unknown = shifts(reference, now, Limits())
    assert (length.is_drift, unknown.is_drift) == (False, True)
    assert unknown.given == pytest.approx(0.049)
    assert str(unknown) == "unknown_increase 0.0490, at most 0.0100: DRIFT"
    assert unknown.as_record()["is_drift"] is True


def test_confidence_is_compared_only_with_enough_answers() -> None:
    def of(confidences: dict[str, int]) -> Traffic:
        return Traffic(texts_by_length={"8.0": 1_000}, answers_by_confidence=confidences)

    sure, unsure = of({"0.5": 100, "1.0": 900}), of({"0.5": 900, "1.0": 100})
    assert [shift.is_drift for shift in shifts(sure, unsure, Limits())] == [False, False, True]
    assert len(shifts(sure, of({"0.5": 10}), Limits())) == 2


def test_unset_limits_keep_their_defaults() -> None:
    assert Limits.of({"max_index": 0.3}) == Limits(max_index=0.3)


@pytest.mark.parametrize("given", [{"max_indexes": 0.3}, {"max_index": "0.3"}, {"max_index": -1}, {"min_texts": True}])
def test_a_limit_that_cannot_be_used_is_refused_by_name(given: dict[str, object]) -> None:
    with pytest.raises(ParamsError) as caught:
        Limits.of(given)
    assert next(iter(given)) in caught.value.given
    assert "max_unknown_increase" in caught.value.problem
