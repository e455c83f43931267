"""What is run: models by what clients call them; and what waits: a ticket for each request, an entry for each text."""

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
    """What a lane needs of a model."""

    def rows(self, texts: Sequence[TokenizedText], output: str) -> Sequence[Rows]: ...


@dataclass(frozen=True, slots=True)
class Lane:
    """Texts that can run together: those of one open model that want the same output of its graph."""

    model: Model
    output: str


@dataclass(eq=False, slots=True)
class Ticket:
    """One request, admitted as a whole; times are those of the scheduler's clock."""

    lane: Lane
    question: AnyQuestion
    arrived_seconds: float
    deadline_seconds: float = math.inf
    """After it, nobody waits for the answers."""
    spread_seconds: float = field(init=False, default=0.0)
    """Over how long its texts have their turns; 0: they have them together."""
    entries: tuple["Entry", ...] = field(init=False)
    answers: list[Any] = field(init=False)
    """Of each text, once it has run."""
    num_left: int = field(init=False)
    """Texts that have not run."""
    num_waiting: int = field(init=False, default=0)
    """Texts that are in the line."""
    tokens: int = field(init=False)
    is_settled: bool = field(init=False, default=False)
    """Answered, failed, or given up: what still runs of it is thrown away."""
    error: BaseException | None = field(init=False, default=None)
    started_seconds: float | None = field(init=False, default=None)
    """When its first text ran."""

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
    """In tokens."""
    second: int = 0
    """When it came, or of a bulk request when its turn comes: in whole seconds of the scheduler's clock."""
    waits: bool = False
    is_later: bool = False
    """Waits, and does not count for who comes now: its turn has not come."""

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
        """Without padding."""
        return sum(entry.length for entry in self.entries)

    @property
    def padded_tokens(self) -> int:
        return max(entry.length for entry in self.entries) * len(self.entries)
