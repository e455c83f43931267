"""Finds which of sentence-transformers' INT8 presets is faster on this machine, called as the clients will call it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Self

from comparison.clocks import texts_per_second
from comparison.elsewhere import measured
from comparison.sentences import Embed, SentenceModels, theirs_onnx
from comparison.stock_onnx import PRESETS
from comparison.tokenizing import at_its_best

_ROUNDS = 3


@dataclass(frozen=True)
class FasterPreset:
    """The faster preset and the speeds of both."""

    name: str
    in_parallel: bool
    """Whether its tokenizer spreads a batch over threads."""
    texts_per_second: Mapping[str, float]
    """Speed of each preset with its tokenizer at its fastest."""

    @property
    def file(self) -> str:
        return PRESETS[self.name]

    @classmethod
    def measured(cls, models: SentenceModels, num_threads: int, texts: Sequence[str]) -> Self:
        """Measure both presets in one process, each in a session of `num_threads` threads, with one text in a call."""
        return cls.of({preset: theirs_onnx(models, num_threads, file) for preset, file in PRESETS.items()}, texts)

    @classmethod
    def of(cls, presets: Mapping[str, Embed], texts: Sequence[str]) -> Self:
        best = {preset: at_its_best(embed, texts[:1]) for preset, embed in presets.items()}
        rounds: dict[str, list[float]] = {preset: [] for preset in best}
        for _ in range(_ROUNDS):
            for preset, (embed, _in_parallel) in best.items():
                rounds[preset].append(measured(texts_per_second, embed, texts, in_a_call=1))
        speeds = {preset: round(median(some), 1) for preset, some in rounds.items()}
        name = max(speeds, key=lambda preset: speeds[preset])
        return cls(name, best[name][1], speeds)

    def facts(self, setup: str) -> dict[str, Any]:
        """Return the JSON fields of `setup`, for which this preset was chosen."""
        return {
            f"{setup}_preset": self.name,
            f"{setup}_tokenizes_in_parallel": self.in_parallel,
            f"{setup}_presets_texts_per_second": dict(self.texts_per_second),
        }
