"""reports/examples/examples.json: rows of text with hidden tokens, and what the encoder says of each."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import TypeAdapter

FILE = "examples.json"


@dataclass(frozen=True)
class Candidate:
    """A token that the model would put in, and how sure it is of it."""

    token: str
    probability: float


@dataclass(frozen=True)
class Guess:
    """One hidden token, and what the model said."""

    original: str
    original_probability: float
    candidates: tuple[Candidate, ...]
    """The likeliest, the first of them first."""

    @property
    def predicted(self) -> str:
        return self.candidates[0].token

    @property
    def probability(self) -> float:
        return self.candidates[0].probability

    @property
    def rank(self) -> int | None:
        """Place of the hidden token among the candidates, from 1; None if it is not there."""
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
    """What stands for a hidden token in `masked`, and nothing in a causal model's, which hides none."""
    guesses: tuple[Guess, ...]
    """In the order of the text."""


def write_examples(folder: Path, examples: Sequence[Example]) -> None:
    content = TypeAdapter(Sequence[Example]).dump_json(examples, indent=1)
    (folder / FILE).write_bytes(content + b"\n")
