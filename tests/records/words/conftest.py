"""Random texts without a language; each seed gives another."""

import random
from collections.abc import Callable

import pytest


@pytest.fixture(scope="session")
def words() -> Callable[[int, int], str]:
    """Function `words(seed, count)` that returns a text of random words, unlike the text of any other seed."""

    def text(seed: int, count: int = 40) -> str:
        draw = random.Random(seed)
        return " ".join("".join(draw.choices("abcdefghijklmnop", k=draw.randint(3, 8))) for _ in range(count))

    return text
