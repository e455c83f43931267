"""How long a package takes to answer on this machine, fp32 and INT8 in turns."""

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from clozeline.inference.encoder import Encoder
from clozeline.inference.manifest import read_manifest
from clozeline.inference.open_model import OpenModel
from clozeline.inference.package import load

_WORDS = ("the", "function", "returns", "a", "tensor", "of", "this", "shape", "or", "raises", "an", "error")
"""Any words do: a model takes as long for nonsense as for sense."""


@dataclass(frozen=True)
class Latency:
    """Medians of whole calls: tokenization, graph, and the making of the answer. A package without INT8 has None."""

    fp32_text_milliseconds: float
    """One text of about 16 words: the likeliest words for its mask, its label, its vector, …"""
    int8_text_milliseconds: float | None
    fp32_batch_milliseconds: float
    """`batch_texts` texts of 4 to 64 words in one call."""
    int8_batch_milliseconds: float | None
    batch_texts: int
    num_threads: int

    @property
    def int8_speedup(self) -> float | None:
        """fp32's time over INT8's: the geometric mean of that of one text and that of a batch."""
        if self.int8_text_milliseconds is None or self.int8_batch_milliseconds is None:
            return None
        of_text = self.fp32_text_milliseconds / self.int8_text_milliseconds
        return math.sqrt(of_text * self.fp32_batch_milliseconds / self.int8_batch_milliseconds)

    def __str__(self) -> str:
        return (
            f"one text in {_both(self.fp32_text_milliseconds, self.int8_text_milliseconds)}; "
            f"{self.batch_texts} texts in {_both(self.fp32_batch_milliseconds, self.int8_batch_milliseconds)}; "
            f"threads: {self.num_threads}"
        )


def measure(folder: Path, *, num_threads: int = 1, batch_texts: int = 32, repeats: int = 15) -> Latency:
    """Time the package in `folder`: medians of `repeats` calls, after one that does not count.

    Raises:
        ArtifactError: the package is damaged.
    """
    precisions = read_manifest(folder).precisions
    models = [load(folder, precision=precision, num_threads=num_threads) for precision in precisions]
    mask = models[0].manifest.special_tokens.mask_token if isinstance(models[0], Encoder) else None
    limit = models[0].manifest.max_length // 2
    text = [_text(min(16, limit), mask)]
    batch = [_text(min(4 + 60 * number // batch_texts, limit), mask) for number in range(batch_texts)]
    texts = dict(zip(precisions, _medians([_answering(model, text) for model in models], repeats), strict=True))
    batches = dict(zip(precisions, _medians([_answering(model, batch) for model in models], repeats), strict=True))
    return Latency(texts["fp32"], texts.get("int8"), batches["fp32"], batches.get("int8"), batch_texts, num_threads)


def _both(fp32: float, int8: float | None) -> str:
    return f"{fp32:.1f} ms (fp32)" + ("" if int8 is None else f", {int8:.1f} ms (INT8)")


def _text(num_words: int, mask: str | None) -> str:
    words = [_WORDS[place % len(_WORDS)] for place in range(num_words)]
    return " ".join([mask or words[0], *words[1:]])


def _answering(model: OpenModel, texts: Sequence[str]) -> Callable[[], object]:
    return lambda: model.answers(model.usual(texts))


def _medians(calls: Sequence[Callable[[], object]], repeats: int) -> list[float]:
    """Milliseconds of each call; the calls take turns, so that another process slows all of them alike."""
    for call in calls:
        call()
    rounds = [[_milliseconds(call) for call in calls] for _ in range(repeats)]
    return [statistics.median(times) for times in zip(*rounds, strict=True)]


def _milliseconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return 1000 * (time.perf_counter() - start)
