"""Which texts run together: those of nearly the length of the one whose turn it is.

On a CPU the whole gain of batching is 1.3 times, and padding costs as much as text: a few hundred tokens of nearly
equal length are best (measured on 2 AVX2 cores, 6 layers of 384, mixed lengths: 414 ms of 256 tokens each, 439 of 512,
532 of 1,024, 752 of 4,096, and 436 ms one by one).
"""

from collections.abc import Sequence

BATCH_TOKENS = 384
"""Most tokens of a micro-batch, padding among them."""
MAX_PADDING = 0.1
"""Most of a micro-batch that may be padding, 0-1."""
MIN_SHARE_TOKENS = 32
"""Fewer than these are not parted among workers."""


def window(
    lengths: Sequence[int], anchor: int, *, budget_tokens: int, max_padding: float = MAX_PADDING
) -> tuple[int, int]:
    """From `low` to before `high`: the places in the ascending `lengths` that run together with that at `anchor`.

    The nearest lengths join first, as long as all of them, padded, fit the budget and little of that is padding.
    The anchor itself always runs, alone if it is longer than the budget.
    """
    low, high = anchor, anchor + 1
    tokens = lengths[anchor]

    def fits(place: int) -> bool:
        padded = max(lengths[place], lengths[high - 1]) * (high - low + 1)
        return padded <= budget_tokens and padded - tokens - lengths[place] <= max_padding * padded

    while True:
        beside = [place for place in (low - 1, high) if 0 <= place < len(lengths)]
        beside.sort(key=lambda place: abs(lengths[place] - lengths[anchor]))
        joining = next(filter(fits, beside), None)
        if joining is None:
            return low, high
        tokens += lengths[joining]
        low, high = min(low, joining), max(high, joining + 1)


def share(waiting_tokens: int, num_idle: int, budget_tokens: int) -> int:
    """The budget of one of `num_idle` workers that are free at once: none takes all while another has nothing."""
    return min(budget_tokens, max(-(-waiting_tokens // num_idle), MIN_SHARE_TOKENS))
