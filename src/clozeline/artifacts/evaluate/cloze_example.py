"""reports/examples/examples.json: rows of text with hidden tokens, and the encoder's predictions of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import TypeAdapter

FILE = "examples.json"


@dataclass(frozen=True)
class Candidate:
    """A predicted token and its probability."""

    token: str
    probability: float


@dataclass(frozen=True)
class Guess:
    """One hidden token and its predictions."""

    original: str
    original_probability: float
    candidates: tuple[Candidate, ...]
    """Most likely tokens, best first."""

    @property
    def predicted(self) -> str:
        return self.candidates[0].token

    @property
    def probability(self) -> float:
        return self.candidates[0].probability

    @property
    def rank(self) -> int | None:
        """Rank of the hidden token among the candidates, from 1; None if it is not among them."""
        tokens = [candidate.token for candidate in self.candidates]
        return tokens.index(self.original) + 1 if self.original in tokens else None

    @property
    def outcome(self) -> Literal["hit", "near", "miss"]:
        if self.rank is None:
            return "miss"
        return "hit" if self.rank == 1 else "near"


@dataclass(frozen=True)
class Example:
    """One row of text with a fold of its tokens hidden."""

    original: str
    masked: str
    mask_token: str
    """String that replaces a hidden token in `masked`; unused with a causal model, which hides none."""
    guesses: tuple[Guess, ...]
    """Hidden tokens in the order of the text."""


def write_examples(folder: Path, examples: Sequence[Example]) -> None:
    content = TypeAdapter(Sequence[Example]).dump_json(examples, indent=1)
    (folder / FILE).write_bytes(content + b"\n")
