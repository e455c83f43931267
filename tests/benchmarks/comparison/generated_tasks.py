"""Small labelled sets made by rule: for machines without other labelled data, and for tests.

Each can be learned, but not perfectly: some labels are wrong, some names mean two things, some questions have
no answer. Lengths differ as in real text: most are short, few are long.
"""

import random
from collections.abc import Iterator
from typing import Any

_FILLER = [
    "the",
    "a",
    "of",
    "and",
    "in",
    "to",
    "it",
    "was",
    "as",
    "with",
    "for",
    "on",
    "that",
    "by",
    "this",
    "from",
    "at",
]
_GOOD = ["fine", "warm", "clever", "bright", "moving", "funny", "rich", "honest", "graceful", "tender"]
_BAD = ["dull", "flat", "tired", "clumsy", "empty", "loud", "shallow", "stale", "lazy", "hollow"]
_FIRST = ["anna", "boris", "clara", "david", "elena", "frank", "greta", "henry", "irene", "jakob", "karla", "louis"]
_LAST = ["smith", "miller", "weaver", "fisher", "baker", "carter", "turner", "cooper", "mason", "hunter"]
_PLACES = ["paris", "berlin", "madrid", "london", "oslo", "dublin", "lisbon", "vienna", "prague", "athens"]
_CRAFTS = ["bread", "shoes", "violins", "clocks", "boats", "lamps", "chairs", "kites", "maps", "hats"]
_WRONG_SHARE = 0.1


def polarity(num_items: int, seed: int) -> Iterator[dict[str, Any]]:
    """Sentences with one to three words of praise or blame among others."""
    draw = random.Random(f"polarity {seed}")
    for _ in range(num_items):
        label = draw.choice(("negative", "positive"))
        words = _filler(draw)
        for _ in range(draw.randint(1, 3)):
            words.insert(draw.randrange(len(words) + 1), draw.choice(_GOOD if label == "positive" else _BAD))
        wrong = draw.random() < _WRONG_SHARE
        yield {"text": " ".join(words), "label": {"negative": "positive"}.get(label, "negative") if wrong else label}


def entities(num_items: int, seed: int) -> Iterator[dict[str, Any]]:
    """Sentences with people, who have one name or two, and places; `baker` alone is a person only behind `mister`."""
    draw = random.Random(f"entities {seed}")
    for _ in range(num_items):
        words = [(word, "O") for word in _filler(draw)]
        for _ in range(draw.randint(0, 3)):
            at = draw.randrange(len(words) + 1)
            while at < len(words) and words[at][1].startswith("I-"):
                at += 1
            words[at:at] = draw.choice((_person, _mister, _place, _trade))(draw)
        yield {"tokens": [word for word, _ in words], "ner_tags": [tag for _, tag in words]}


def questions(num_items: int, seed: int) -> Iterator[dict[str, Any]]:
    """Return contexts about people, their homes and their work, each with four questions, one of them unanswerable."""
    draw = random.Random(f"questions {seed}")
    for number in range(num_items):
        if number % 4 == 0:
            people = draw.sample(_FIRST, draw.randint(3, 9))
            facts = [(person, draw.choice(_PLACES), draw.choice(_CRAFTS)) for person in people]
            context = " ".join(
                f"{who} {draw.choice(_LAST)} lives in {place} and makes {it} ." for who, place, it in facts
            )
        who, place, craft = draw.choice(facts)
        if number % 4 == 3:
            stranger = draw.choice([name for name in _FIRST if name not in people])
            yield _asked(f"where does {stranger} live ?", context, None, who)
        elif number % 2:
            yield _asked(f"where does {who} live ?", context, place, who)
        else:
            yield _asked(f"what does {who} make ?", context, craft, who)


def _filler(draw: random.Random) -> list[str]:
    return draw.choices(_FILLER, k=min(4 + int(draw.expovariate(1 / 16)), 80))


def _person(draw: random.Random) -> list[tuple[str, str]]:
    return [(draw.choice(_FIRST), "B-person"), (draw.choice(_LAST), "I-person")]


def _mister(draw: random.Random) -> list[tuple[str, str]]:
    return [("mister", "O"), (draw.choice(_LAST), "B-person")]


def _place(draw: random.Random) -> list[tuple[str, str]]:
    return [(draw.choice(_PLACES), "B-place")]


def _trade(draw: random.Random) -> list[tuple[str, str]]:
    return [(draw.choice(_LAST), "O")]


def _asked(question: str, context: str, answer: str | None, who: str) -> dict[str, Any]:
    if answer is None:
        return {"question": question, "context": context, "answers": {"text": [], "answer_start": []}}
    start = context.index(answer, context.index(f"{who} "))
    return {"question": question, "context": context, "answers": {"text": [answer], "answer_start": [start]}}
