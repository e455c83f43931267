"""Tickets of given lengths, a clock that is set by hand, and a model that answers with the lengths of its texts."""

import math
from collections.abc import Sequence

import numpy as np

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


LANE = Lane(EchoModel(), "logits")


def ticket(
    *lengths: int, arrived: float = 0, deadline: float = math.inf, spread: float = 0, lane: Lane = LANE
) -> Ticket:
    """Return a request whose texts have these numbers of tokens; with `spread` a bulk request."""
    texts = [TokenizedText(np.zeros(length, dtype=np.int64), ()) for length in lengths]
    question = Question(texts, "logits", lambda position, rows: (position, float(rows[0])))
    made = Ticket(lane, question, arrived, deadline)
    made.spread_seconds = spread
    return made
