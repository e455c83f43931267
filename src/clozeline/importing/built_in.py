"""Built-in items on which INT8 is compared with fp32, if the user gives no text.

Sentences of six parts say who did what where, and how it was. So taggers find names, classifiers an opinion, answerers
an answer, and pairs that share some of the parts have a known similarity.
"""

import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from clozeline.artifacts.finetune.model.held_out import HeldOut

_NUM_ITEMS: Final = 320
_PEOPLE: Final = (
    "Maria Lopez", "John Miller", "Aisha Khan", "Peter Novak", "Yuki Tanaka", "Emma Clark", "David Cohen",
    "Chen Wei", "Olga Petrova", "Paul Dubois", "Sofia Rossi", "Ahmed Hassan", "Laura Schmidt", "James Wilson",
)  # fmt: skip
_PLACES: Final = (
    "Berlin", "Paris", "Madrid", "Tokyo", "Boston", "Cairo", "Vienna", "Toronto", "Sydney", "Prague", "Lisbon",
    "Chicago", "Dublin", "Mumbai", "Oslo", "Rome",
)  # fmt: skip
_FIRMS: Final = (
    "Siemens", "Toyota", "Google", "Nokia", "Airbus", "Samsung", "Philips", "Boeing", "Ikea", "Microsoft", "Nestle",
    "Unilever", "Intel", "Sony",
)  # fmt: skip
_DEEDS: Final = (
    "repaired a printer for", "signed a contract with", "wrote a report about", "bought a car from",
    "lost a court case against", "painted the offices of", "taught chemistry at a school of",
    "sold an old bridge to", "studied the accounts of", "cooked a dinner for the guests of",
)  # fmt: skip
_TIMES: Final = (
    "last spring", "in March 2019", "two weeks ago", "during the storm", "on a Monday morning", "after the election",
    "in the summer of 1998", "before breakfast",
)  # fmt: skip
_OPINIONS: Final = (
    "it was a wonderful success", "everybody was delighted with the result", "the food was excellent and cheap",
    "it was the best day of the year", "the service was friendly and quick", "it was a terrible failure",
    "the result was boring and useless", "everything broke and nobody helped", "the room was dirty and far too loud",
    "it cost a lot of money for nothing", "the meeting ended at noon", "the documents are kept in a blue box",
)  # fmt: skip


@dataclass(frozen=True)
class _Event:
    """Parts of a sentence."""

    person: str
    deed: str
    firm: str
    place: str
    time: str
    opinion: str

    @property
    def sentence(self) -> str:
        return f"{self.person} {self.deed} {self.firm} in {self.place} {self.time}, and {self.opinion}."

    @property
    def reordered(self) -> str:
        return f"In {self.place}, {self.time}: {self.person} {self.deed} {self.firm}; {self.opinion}."


_PARTS: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {"person": _PEOPLE, "deed": _DEEDS, "firm": _FIRMS, "place": _PLACES, "time": _TIMES, "opinion": _OPINIONS}
)


def built_in_items(task: str, *, reads_pairs: bool) -> list[HeldOut]:
    """Return the same items each time, for a model of this kind."""
    draw = random.Random(0)
    make = _pair_without_score if reads_pairs else _MADE.get(task, _text)
    events = [_Event(**{part: draw.choice(values) for part, values in _PARTS.items()}) for _ in range(_NUM_ITEMS)]
    return [make(event, number, draw) for number, event in enumerate(events)]


def are_built_in(items: Iterable[HeldOut], task: str, *, reads_pairs: bool) -> bool:
    """Return whether no item is the user's. Built-in answers show what INT8 changes, not which model is better."""
    return set(items) <= set(built_in_items(task, reads_pairs=reads_pairs))


def _text(event: _Event, number: int, draw: random.Random) -> HeldOut:
    return HeldOut(text=event.sentence)


def _question(event: _Event, number: int, draw: random.Random) -> HeldOut:
    asked, answer = (
        (f"Who {event.deed} {event.firm}?", event.person),
        (f"Where was {event.person}?", event.place),
        (f"When did that happen in {event.place}?", event.time),
    )[number % 3]
    return HeldOut(text=asked, second=event.sentence, right=(answer,))


def _scored_pair(event: _Event, number: int, draw: random.Random) -> HeldOut:
    """Pair a sentence with one of which some parts are other ones; the score is the share of equal parts."""
    return HeldOut(
        text=event.sentence,
        second=(changed := _changed(event, number % (len(_PARTS) + 1), draw)).reordered,
        score=sum(getattr(changed, part) == getattr(event, part) for part in _PARTS) / len(_PARTS),
    )


def _pair_without_score(event: _Event, number: int, draw: random.Random) -> HeldOut:
    second = (
        f"{event.person} was in {event.place}.",
        f"{event.person} was never in {event.place}.",
        f"{draw.choice(_PEOPLE)} likes music.",
        _changed(event, number % 4, draw).reordered,
    )[number % 4]
    return HeldOut(text=event.sentence, second=second)


def _changed(event: _Event, num_parts: int, draw: random.Random) -> _Event:
    changed = dict(vars(event))
    for part in draw.sample(list(_PARTS), num_parts):
        changed[part] = draw.choice([value for value in _PARTS[part] if value != changed[part]])
    return _Event(**changed)


_MADE: Final[Mapping[str, Callable[[_Event, int, random.Random], HeldOut]]] = MappingProxyType(
    {"question-answering": _question, "feature-extraction": _scored_pair}
)
"""Kind of model → its items; plain sentences for the others."""
