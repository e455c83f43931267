"""Tickets of given lengths, a clock that is set by hand, and a model that says what it was asked to run."""

from collections.abc import Sequence

import numpy as np
import pytest

from clozeline.inference.question import Question, Rows
from clozeline.inference.tokenization import TokenizedText
from clozeline.serving.scheduling.work import Lane, Ticket


class Clock:
    """Seconds, as they are set."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


class EchoModel:
    """Gives each text its own length back."""

    def rows(self, texts: Sequence[TokenizedText], output: str) -> list[Rows]:
        return [np.array([len(text)], dtype=np.float32) for text in texts]


class Tickets:
    """Makes tickets of one lane."""

    def __init__(self) -> None:
        self.lane = Lane(EchoModel(), "logits")

    def __call__(
        self, *lengths: int, arrived: float = 0, deadline: float = float("inf"), lane: Lane | None = None
    ) -> Ticket:
        texts = [TokenizedText(np.zeros(length, dtype=np.int64), ()) for length in lengths]
        question = Question(texts, "logits", lambda position, rows: (position, float(rows[0])))
        return Ticket(lane or self.lane, question, arrived, deadline)


@pytest.fixture(scope="session")
def ticket() -> Tickets:
    """`ticket(5, 9, arrived=1.5)`: a request of two texts."""
    return Tickets()


@pytest.fixture
def clock() -> Clock:
    return Clock()
