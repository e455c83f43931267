"""Choice of the lengths that run together."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clozeline.serving.queue import MAX_PADDING, share, window

lengths_and_anchor = st.lists(st.integers(1, 600), min_size=1, max_size=60).flatmap(
    lambda lengths: st.tuples(st.just(sorted(lengths)), st.integers(0, len(lengths) - 1))
)


@given(lengths_and_anchor, st.integers(1, 600))
def test_a_window_holds_the_anchor_and_fits_the_budget_with_little_padding(
    given_lengths: tuple[list[int], int], budget_tokens: int
) -> None:
    lengths, anchor = given_lengths
    low, high = window(lengths, anchor, budget_tokens=budget_tokens)
    assert 0 <= low <= anchor < high <= len(lengths)
    padded = lengths[high - 1] * (high - low)
    assert high - low == 1 or padded <= budget_tokens
    assert padded - sum(lengths[low:high]) <= MAX_PADDING * padded


@given(lengths_and_anchor, st.integers(1, 600))
def test_neither_neighbour_of_a_window_would_fit(given_lengths: tuple[list[int], int], budget_tokens: int) -> None:
    lengths, anchor = given_lengths
    low, high = window(lengths, anchor, budget_tokens=budget_tokens)
    for wider in ((low - 1, high), (low, high + 1)):
        if wider[0] >= 0 and wider[1] <= len(lengths):
            padded = lengths[wider[1] - 1] * (wider[1] - wider[0])
            waste = padded - sum(lengths[wider[0] : wider[1]])
            assert padded > budget_tokens or waste > MAX_PADDING * padded


@pytest.mark.parametrize(
    ("lengths", "anchor", "expected"),
    [
        ([10, 10, 10, 10], 1, (0, 4)),
        ([100] * 9, 4, (2, 5)),  # 384 tokens hold three texts; texts before the anchor come first
        ([5, 100, 101, 300], 1, (1, 3)),
        ([10, 11, 300], 2, (2, 3)),
        ([700], 0, (0, 1)),  # longer than the budget: it runs alone instead of waiting for ever
    ],
)
def test_texts_of_the_nearest_lengths_join_the_batch_of_the_oldest(
    lengths: list[int], anchor: int, expected: tuple[int, int]
) -> None:
    assert window(lengths, anchor, budget_tokens=384) == expected


@pytest.mark.parametrize(
    ("waiting_tokens", "num_idle", "expected"),
    [(200, 1, 200), (200, 2, 100), (201, 2, 101), (10_000, 2, 384), (40, 2, 32), (5, 4, 32)],
)
def test_idle_workers_share_the_waiting_tokens(waiting_tokens: int, num_idle: int, expected: int) -> None:
    assert share(waiting_tokens, num_idle, 384) == expected
