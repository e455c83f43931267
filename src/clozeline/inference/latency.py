"""Latency of a package on this machine, with fp32 and INT8 timed in turns."""

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from clozeline.inference.open_model import OpenModel
from clozeline.inference.package import kind_of, load
from clozeline.records.package import Precision, read_manifest

# Words for the timed texts; latency does not depend on their meaning.
_WORDS = ("the", "function", "returns", "a", "tensor", "of", "this", "shape", "or", "raises", "an", "error")

_NUM_THREADS = 1
_ROUNDS = 3
_MOST_ROUNDS = 9
# Time to measure one text in a round, and again a batch: a large model makes fewer calls.
_ROUND_SECONDS = 5.0
# Rounds agree if the highest of their speedups is at most this multiple of the lowest.
_AGREEMENT = 1.1

# Function from the times of calls to the reported figure, such as the median.
Figure = Callable[[Sequence[float]], float]


@dataclass(frozen=True)
class Latency:
    """Times of whole calls: tokenization, graph and conversion of the answer. INT8 is None if the package lacks it."""

    fp32_text_milliseconds: float  # time for one text of about 16 words
    int8_text_milliseconds: float | None
    fp32_batch_milliseconds: float  # time for `batch_texts` texts of 4 to 64 words in one call
    int8_batch_milliseconds: float | None
    batch_texts: int
    num_threads: int
    num_rounds: int = 1  # rounds of the measurement; the times are those of the round with the median speedup
    lowest_int8_speedup: float | None = None  # lowest `int8_speedup` of a round; None: there was one round, or no INT8
    highest_int8_speedup: float | None = None

    @property
    def is_steady(self) -> bool:
        """Whether the rounds agree about the speed of INT8; on a busy machine they may not."""
        low, high = self.lowest_int8_speedup, self.highest_int8_speedup
        return low is None or high is None or high <= _AGREEMENT * low

    @property
    def int8_speedup(self) -> float | None:
        """Time of fp32 / time of INT8, for one text or for a batch, whichever is smaller; INT8 is slower below 1."""
        if self.int8_text_milliseconds is None or self.int8_batch_milliseconds is None:
            return None
        return min(
            self.fp32_text_milliseconds / self.int8_text_milliseconds,
            self.fp32_batch_milliseconds / self.int8_batch_milliseconds,
        )

    def __str__(self) -> str:
        speedup = "" if self.int8_speedup is None else f"{as_fast(self.int8_speedup)}{self._rounds}: "
        return (
            f"{speedup}one text in {_both(self.fp32_text_milliseconds, self.int8_text_milliseconds)}; "
            f"{self.batch_texts} texts in {_both(self.fp32_batch_milliseconds, self.int8_batch_milliseconds)}; "
            f"threads: {self.num_threads}"
        )

    @property
    def _rounds(self) -> str:
        low, high = self.lowest_int8_speedup, self.highest_int8_speedup
        if low is None or high is None:
            return ""
        doubt = "" if self.is_steady else ", which disagree: the machine was busy"
        return f" ({low:.2f} to {high:.2f} in {self.num_rounds} rounds{doubt})"


def as_fast(int8_speedup: float | None) -> str:
    """Return `Latency.int8_speedup` in words, rounded down: a slower graph never reads as 1.00 × as fast."""
    if int8_speedup is None:
        return "both graphs were timed"
    return f"INT8 is {math.floor(100 * int8_speedup) / 100:.2f} × as fast as fp32"


def measure(folder: Path, *, batch_texts: int = 32, repeats: int = 15) -> Latency:
    """Time the package in `folder` in rounds (`agreed`): medians of `repeats` calls after a warm-up call.

    Raises:
        ArtifactError: the package is damaged.
    """
    precisions = read_manifest(folder).precisions
    models = {precision: load(folder, precision=precision, num_threads=_NUM_THREADS) for precision in precisions}
    return agreed(lambda: compare(models, batch_texts=batch_texts, repeats=repeats, seconds=_ROUND_SECONDS))


def agreed(measured: Callable[[], Latency]) -> Latency:
    """Measure until `_ROUNDS` rounds in a row agree about the speed of INT8; return the one with the median speedup.

    If none agree within `_MOST_ROUNDS`, the median is that of all rounds, and the result is not steady.
    """
    rounds = [measured()]
    if rounds[0].int8_speedup is None:
        return rounds[0]
    while len(rounds) < _ROUNDS or (not (last := _middle(rounds[-_ROUNDS:])).is_steady and len(rounds) < _MOST_ROUNDS):
        rounds.append(measured())
    return last if last.is_steady else _middle(rounds)


def _middle(rounds: Sequence[Latency]) -> Latency:
    ratios = [one.int8_speedup or 0.0 for one in rounds]
    middle = rounds[ratios.index(statistics.median_high(ratios))]
    return replace(middle, num_rounds=len(rounds), lowest_int8_speedup=min(ratios), highest_int8_speedup=max(ratios))


def compare(
    models: Mapping[Precision, OpenModel],
    *,
    batch_texts: int,
    repeats: int,
    seconds: float = float("inf"),
    figure: Figure = statistics.median,
) -> Latency:
    """Time the open graphs of a package, which include fp32.

    `seconds` limits the time spent on one text, and again on the batch. `figure` summarizes the calls; with few calls
    use `min`, which other processes disturb least.
    """
    fp32 = models["fp32"]
    mask = fp32.manifest.special_tokens.mask_token if kind_of(fp32.manifest.task).fills_masks else None
    limit = fp32.manifest.max_length // 2
    text = [_text(min(16, limit), mask)]
    batch = [_text(min(4 + 60 * number // batch_texts, limit), mask) for number in range(batch_texts)]

    def asked(texts: Sequence[str]) -> dict[Precision, float]:
        calls = [partial(_answer, model, texts) for model in models.values()]
        figures = _figures(calls, repeats, seconds, figure)
        return dict(zip(models, figures, strict=True))

    of_text, of_batch = asked(text), asked(batch)
    return Latency(
        of_text["fp32"], of_text.get("int8"), of_batch["fp32"], of_batch.get("int8"), batch_texts, _NUM_THREADS
    )


def _both(fp32: float, int8: float | None) -> str:
    return f"{fp32:.1f} ms (fp32)" + ("" if int8 is None else f", {int8:.1f} ms (INT8)")


def _text(num_words: int, mask: str | None) -> str:
    words = [_WORDS[place % len(_WORDS)] for place in range(num_words)]
    return " ".join([mask or words[0], *words[1:]])


def _answer(model: OpenModel, texts: Sequence[str]) -> None:
    model.answers(model.usual(texts))


def _figures(calls: Sequence[Callable[[], object]], repeats: int, seconds: float, figure: Figure) -> list[float]:
    """Return the milliseconds of each call; calls alternate, so that other processes slow all of them equally."""
    started = time.perf_counter()
    for call in calls:
        call()
    rounds = [[_milliseconds(call) for call in calls]]
    while len(rounds) < repeats and time.perf_counter() - started < seconds:
        rounds.append([_milliseconds(call) for call in calls])
    return [figure(times) for times in zip(*rounds, strict=True)]


def _milliseconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return 1000 * (time.perf_counter() - start)
