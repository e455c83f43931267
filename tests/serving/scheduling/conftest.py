"""Tickets of given lengths, a clock that is set by hand, and a model that answers with the lengths of its texts."""

from collections.abc import Sequence

import numpy as np
import pytest

from clozeline.inference.open_model import Question, Rows
from clozeline.inference.tokenization import TokenizedText
from clozeline.serving.queue import Lane, Ticket


class Clock:
    """Clock whose `seconds` are set by hand."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


class EchoModel:
    """Model that answers each text with its length."""

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
    """Maker of tickets: `ticket(5, 9, arrived=1.5)` is a request of two texts, of 5 and 9 tokens."""
    return Tickets()


@pytest.fixture
def clock() -> Clock:
    return Clock()
