"""The nights of a month, drawn by a seed: what happens in each, when, and how a person answers its alert."""

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, get_args

Fault = Literal["worker killed", "stage killed", "MLflow away", "Prefect away", "store away", "disk full"]
Change = Literal["short feed", "foreign feed", "worse model", "better model", "drift", "colleague", "gc"]
Event = Literal["quiet", Fault, Change]
Answer = Literal["accept", "leave"]
Ending = Literal["Completed", "Held", "Failed", "ContractBroken"]

STAGES: Final = ("snapshot", "preprocess", "tokenize", "pretrain", "evaluate", "export@encoder")
# Endings of a night that learned its text: the interval of the difference decides between them.
_LEARNED: Final = frozenset[Ending]({"Completed", "Held"})
# States in which the run of a night may end. All but Completed send an alert.
ENDINGS: Final[Mapping[Event, frozenset[Ending]]] = {
    **dict.fromkeys(get_args(Event), _LEARNED),
    "stage killed": _LEARNED | {"Failed"},  # Failed unless the stage had just ended
    "store away": _LEARNED | {"Failed"},  # Failed if the store is away for longer than the push tries
    "disk full": frozenset({"Failed"}),
    "short feed": frozenset({"ContractBroken"}),
    "foreign feed": frozenset({"ContractBroken"}),
    "worse model": frozenset({"Failed"}),
}
# Its automation starts one retraining a day, and a month of this scenario takes an hour or so.
_ONCE: Final = "drift"
_FIRST_TEXTS: Final = 600
_MOST_NEW_TEXTS: Final = 60


@dataclass(frozen=True)
class Night:
    """One night. Its draws depend on the seed alone."""

    number: int
    num_texts: int  # texts that the feed has had so far
    event: Event
    stage: str  # stage during which the event happens, if it has a moment
    delay_seconds: float  # from the start of that stage to the event
    # Answer to the alert that a version is held. Every other alert needs none: the next night goes on.
    answer: Answer


def nights(number: int, seed: int) -> list[Night]:
    """Return the scenario. The first night is quiet; the others have every event once if there are enough of them."""
    chance = random.Random(seed)
    quiet, *others = get_args(Event)
    events = chance.sample(others, len(others))
    several = [event for event in get_args(Event) if event != _ONCE]
    events += chance.choices(several, k=max(number - 1 - len(events), 0))
    events = [quiet, *chance.sample(events[: number - 1], number - 1)]
    num_texts, made = _FIRST_TEXTS, []
    for place, event in enumerate(events, 1):
        drawn = (chance.choice(STAGES), round(chance.uniform(0, 5), 1), chance.choice(get_args(Answer)))
        made.append(Night(place, num_texts, event, *drawn))
        num_texts += chance.randint(_MOST_NEW_TEXTS // 2, _MOST_NEW_TEXTS)
    return made
