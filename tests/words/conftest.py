"""Texts of no language, as unlike as is wanted."""

import random
from collections.abc import Callable

import pytest


@pytest.fixture
def words() -> Callable[[int, int], str]:
    """`words(seed, count)`: a text of random words, unlike any other seed's."""

    def text(seed: int, count: int = 40) -> str:
        draw = random.Random(seed)
        return " ".join("".join(draw.choices("abcdefghijklmnop", k=draw.randint(3, 8))) for _ in range(count))

    return text
