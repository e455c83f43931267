"""A small language with the shapes that break tokenizers: accents, ideographs, punctuation, odd white space."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

import pytest

from clozeline.params.text import TokenizeParams
from clozeline.tokenizing.words import CountedTexts

_SYLLABLES = ["ka", "to", "mi", "re", "su", "lon", "ber", "étà", "ñu", "ge", "shi", "vo", "tri", "ple"]
_SYLLABLES += ["½x", "straße", "東", "京"]
_BETWEEN = [" "] * 20 + ["  ", "\n", ", ", ". ", " (", ") ", "-", "\t", "\n\n    ", " ", "'s "]


@pytest.fixture(scope="session")
def texts() -> list[str]:
    draw = random.Random(5)
    words = ["".join(draw.choices(_SYLLABLES, k=draw.randint(1, 4))) for _ in range(600)]
    words += [word.title() for word in words[:100]]
    return ["".join(draw.choice(words) + draw.choice(_BETWEEN) for _ in range(draw.randint(3, 80))) for _ in range(400)]


@dataclass(frozen=True)
class MadeTexts:
    """Texts in memory that are counted as one partition."""

    made: Sequence[str]

    @property
    def digest(self) -> str:
        return blake2b(repr(self.made).encode(), digest_size=16).hexdigest()

    @property
    def reads(self) -> tuple[Path, ...]:
        return ()

    def texts(self) -> Iterator[Sequence[str]]:
        return iter([self.made[start : start + 64] for start in range(0, len(self.made), 64)])


@pytest.fixture
def partitions(texts: list[str]) -> list[CountedTexts]:
    """The texts in three partitions."""
    return [MadeTexts(texts[:50]), MadeTexts(texts[50:51]), MadeTexts(texts[51:])]


@pytest.fixture(params=["wordpiece", "bpe", "unigram"])
def params(request: pytest.FixtureRequest) -> TokenizeParams:
    return tokenize_params(algorithm=request.param)


def tokenize_params(**changes: object) -> TokenizeParams:
    values: dict[str, object] = {
        "algorithm": "wordpiece",
        "existing": None,
        "vocab_size": 400,
        "min_frequency": 2,
        "lowercase": True,
        "shard_tokens": 5000,
    }
    return TokenizeParams.model_validate(values | changes)
