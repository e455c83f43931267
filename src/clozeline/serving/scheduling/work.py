"""Waiting work: a lane for each model output, a ticket for each inference job of a request, an entry for each text."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from clozeline.inference.open_model import OpenModel
from clozeline.inference.question import AnyQuestion, Rows
from clozeline.inference.tokenization import TokenizedText
from clozeline.serving.observe.identity import Identity

Opened = TypeVar("Opened", bound=OpenModel, covariant=True)


@dataclass(frozen=True, slots=True)
class ServedModel(Generic[Opened]):
    identity: Identity
    model: Opened


LoadedModel = ServedModel[OpenModel]


class Model(Protocol):
    """The part of a model that a lane needs."""

    def rows(self, texts: Sequence[TokenizedText], output: str) -> Sequence[Rows]: ...


@dataclass(frozen=True, slots=True)
class Lane:
    """Texts that can run together: they need the same output of the same model."""

    model: Model
    output: str


@dataclass(eq=False, slots=True)
class Ticket:
    """One inference job of a request, admitted as a whole. Times are those of the scheduler's clock."""

    lane: Lane
    question: AnyQuestion
    arrived_seconds: float
    deadline_seconds: float = math.inf
    """Time after which the texts are no longer run."""
    spread_seconds: float = field(init=False, default=0.0)
    """Seconds over which the turns of its texts are spread; 0: they come together."""
    entries: tuple["Entry", ...] = field(init=False)
    answers: list[Any] = field(init=False)
    """Answer to each text; None until the text has run."""
    num_left: int = field(init=False)
    """Number of texts that have not run."""
    num_waiting: int = field(init=False, default=0)
    """Number of texts in the line."""
    tokens: int = field(init=False)
    is_settled: bool = field(init=False, default=False)
    """Answered, failed or given up. Results of texts that still run are discarded."""
    error: BaseException | None = field(init=False, default=None)
    started_seconds: float | None = field(init=False, default=None)
    """Time at which its first text began to run."""

    def __post_init__(self) -> None:
        self.entries = tuple(Entry(self, position, len(text)) for position, text in enumerate(self.question.texts))
        self.num_left = len(self.entries)
        self.answers = [None] * self.num_left
        self.tokens = sum(entry.length for entry in self.entries)


@dataclass(eq=False, slots=True)
class Entry:
    """One text of a ticket."""

    ticket: Ticket
    position: int
    length: int
    """Length in tokens."""
    second: int = 0
    """Second of its arrival, or of its turn in a bulk request: a whole number on the scheduler's clock."""
    waits: bool = False
    is_later: bool = False
    """Whether it is a bulk text whose turn has not come. Admission of other requests does not count it."""

    @property
    def text(self) -> TokenizedText:
        text: TokenizedText = self.ticket.question.texts[self.position]
        return text


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """Entries of one lane that run together."""

    lane: Lane
    entries: tuple[Entry, ...]

    @property
    def tokens(self) -> int:
        """Tokens without padding."""
        return sum(entry.length for entry in self.entries)

    @property
    def padded_tokens(self) -> int:
        return max(entry.length for entry in self.entries) * len(self.entries)
