"""Limits of INT8 graphs for tests: those that every graph passes, and copies with some of them tightened."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Self

import pytest

from clozeline.exporting import proof
from clozeline.params.delivery import ExportGates

_OF_PARAMS = ("min_agreement", "min_metric_ratio")


@dataclass(frozen=True)
class Limits:
    """Gates of params.yaml, and constants of exporting/proof.py by their names in lower case."""

    gates: ExportGates
    constants: Mapping[str, float] = field(default_factory=dict)

    def but(self, **changes: float) -> Self:
        """Return the same with other values for some limits."""
        gates = {name: limit for name, limit in changes.items() if name in _OF_PARAMS}
        constants = {name: limit for name, limit in changes.items() if name not in _OF_PARAMS}
        return type(self)(self.gates.model_copy(update=gates), {**self.constants, **constants})

    @contextmanager
    def applied(self) -> Iterator[ExportGates]:
        """Give the gates; inside, the constants have these values."""
        with pytest.MonkeyPatch.context() as patched:
            for name, limit in self.constants.items():
                patched.setattr(proof, name.upper(), limit)
            yield self.gates


OPEN = Limits(
    ExportGates(min_agreement=0, min_metric_ratio=0),
    {
        "min_agreement_texts": 1,
        "min_different_answers": 1,
        "min_metric_items": 1,
        "min_embedding_cosine": 0,
        "min_token_cosine": 0,
        "max_batch_flips": 1,
        "min_batch_cosine": 0,
    },
)
# Weights are random, so right answers are chance, and some models give one answer to every text.
RANDOM = Limits(
    ExportGates(min_agreement=0.9, min_metric_ratio=0),
    {"min_agreement_texts": 1, "min_different_answers": 1, "min_metric_items": 1},
)
"""The limits of params.yaml, as far as models with random weights can meet them."""
