"""The scenario of a month depends on its seed alone, and a whole one has every event."""

from collections import Counter
from typing import get_args

import pytest

from tests.month.players import PLAYERS
from tests.month.scenario import ENDINGS, Event, nights


@pytest.mark.parametrize("seed", range(5))
def test_thirty_nights_have_every_event_and_begin_with_a_quiet_one(seed: int) -> None:
    month = nights(30, seed)
    events = Counter(night.event for night in month)
    assert len(month) == 30
    assert month[0].event == "quiet"
    assert set(events) == set(get_args(Event))
    assert events["drift"] == 1, "its automation starts one retraining a day"
    texts = [night.num_texts for night in month]
    assert texts == sorted(set(texts)), "the text grows every night"


def test_the_seed_decides_the_scenario() -> None:
    assert nights(30, 1) == nights(30, 1)
    assert nights(30, 1) != nights(30, 2)
    assert [night.number for night in nights(3, 1)] == [1, 2, 3]


def test_every_event_has_a_player_and_endings() -> None:
    assert set(PLAYERS) == set(ENDINGS) == set(get_args(Event))
