"""The nights of a month, drawn by a seed: what happens in each, when, and how a person answers its alert; and what each
finds: the text, and the params of the real stages with a model that trains in seconds.
"""

import random
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, get_args

from clozeline.versions import remote
from tests.make import projects
from tests.make.stores import BUCKET

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


_FOREIGN_SYLLABLES: Final = ("ky", "xo", "qu", "jä", "hü", "fö", "ñe", "ça", "øp", "åv", "ýs", "ðu")
# Share of the texts that a feed delivers which is 60 % short.
_SHORT_SHARE: Final = 0.4
PARAMS: Final[Mapping[str, Any]] = {
    "preprocess": {
        "source": {"kind": "files", "path": projects.SENTENCES.as_posix()},
        "min_characters": 20,
        "validation_fraction": 0.2,
        "holdout_fraction": 0,
    },
    "tokenize": {"vocab_size": 200},
    "recipes": {"continue": {"steps": 60, "schedule": {"warmup_fraction": 0.1}}},
    "pretrain": {
        "model": projects.TINY_MODEL,
        "max_length": 32,
        "batch_tokens": 512,
        "schedule": {"warmup_fraction": 0.03},
        "steps": 150,
        "log_every_steps": 5,
        "checkpoint_every_steps": 10,
        "num_threads": 1,
    },
    "evaluate": projects.TINY_EVALUATION,
    "export": {
        "num_agreement_texts": 100,
        "ladder": [{"weights": "int7", "exact_share": 0.0, "quantize_embeddings": True}],
        "static_ratios": [],
    },
    # Nightly models as small as these differ by 2 % by chance, beyond the default of `max_perplexity_ratio`.
    "release": {"min_unigram_ratio": 1.0, "max_perplexity_ratio": 1.1},
}
_CONTINUE: Final[Mapping[str, Any]] = {"pretrain": {"recipe": "continue"}}
# What someone commits for one night, and takes back on the next day.
_CHANGED: Final[Mapping[Event, Mapping[str, Any]]] = {
    "worse model": {"recipes": {"continue": {"optimizer": {"learning_rate": 0.5}}}},
    "better model": {"recipes": {"continue": {"steps": 240}}},
}


def make_project(root: Path, store_url: str) -> Path:
    """Write the project in `root`, with its remote in the store; nothing has run."""
    projects.copy_project(root)
    set_params(root, {})
    remote.add(root, f"s3://{BUCKET}/month", store_url)
    return root


def prepare(root: Path, night: Night) -> None:
    """Write the text and the params that the night finds."""
    texts = projects.toy_language(night.num_texts)
    if night.event == "short feed":
        texts = texts[: int(_SHORT_SHARE * len(texts))]
    elif night.event == "foreign feed":
        texts = projects.toy_language(night.num_texts, _FOREIGN_SYLLABLES)
    projects.write_sentences(root, texts)
    set_params(root, _CHANGED.get(night.event, {}), is_first=night.number == 1)


def set_params(root: Path, changes: Mapping[str, Any], *, is_first: bool = True) -> None:
    """Write params.yaml: the first night trains from random weights, every later one continues from the champion."""
    projects.write_params(root, PARAMS)
    for more in ({} if is_first else _CONTINUE, changes):
        projects.write_params(root, more, source=root / "params.yaml")
