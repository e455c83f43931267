"""Speed of a side, measured in the process where it runs."""

import time
from collections.abc import Sequence
from statistics import median

from comparison.elsewhere import Ask


def texts_per_second(ask: Ask, texts: Sequence[str], *, in_a_call: int) -> float:
    """Return the texts per second of consecutive calls with `in_a_call` texts each."""
    started = time.perf_counter()
    for at in range(0, len(texts), in_a_call):
        ask(texts[at : at + in_a_call])
    return len(texts) / (time.perf_counter() - started)


def median_milliseconds(ask: Ask, texts: Sequence[str]) -> float:
    """Return the median duration of calls with one text each."""
    seconds = []
    for text in texts:
        started = time.perf_counter()
        ask([text])
        seconds.append(time.perf_counter() - started)
    return 1000 * median(seconds)
