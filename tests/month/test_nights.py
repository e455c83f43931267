"""The nights of a month depend on their seed alone, and each finds the params and the text that its event says."""

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest

from clozeline.params.reading import read_params
from tests.make.projects import SENTENCES
from tests.month.players import PLAYERS
from tests.month.scenario import ENDINGS, Event, Night, nights, prepare


@pytest.mark.parametrize("seed", range(5))
def test_thirty_nights_have_every_event_and_begin_with_a_quiet_one(seed: int) -> None:
    month = nights(30, seed)
    events = Counter(night.event for night in month)
    assert [night.number for night in month] == [*range(1, 31)]
    assert month[0].event == "quiet"
    assert set(events) == set(get_args(Event)) == set(PLAYERS) == set(ENDINGS)
    assert events["drift"] == 1, "its automation starts one retraining a day"
    texts = [night.num_texts for night in month]
    assert texts == sorted(set(texts)), "the text grows every night"
    assert month == nights(30, seed) != nights(30, seed + 1)


def texts(root: Path, night: Night) -> list[str]:
    """Prepare the night; return the texts that it finds."""
    prepare(root, night)
    return [json.loads(line)["text"] for line in (root / SENTENCES).read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize("event", ["quiet", "worse model", "better model"])
def test_the_params_of_every_night_are_valid(event: Event, tmp_path: Path) -> None:
    starts = []
    for night in nights(2, seed=0):
        prepare(tmp_path, replace(night, event=event))
        starts.append(read_params(tmp_path / "params.yaml").pretrain.start)
    assert starts == [None, "champion"]


def test_only_the_feed_of_a_bad_night_differs_from_text_that_grows(tmp_path: Path) -> None:
    before, night = nights(2, seed=0)
    earlier, grown = texts(tmp_path, before), texts(tmp_path, replace(night, event="quiet"))
    assert grown[: len(earlier)] == earlier
    assert len(grown) == night.num_texts > len(earlier)
    short = texts(tmp_path, replace(night, event="short feed"))
    assert short == grown[: len(short)]
    assert len(short) == pytest.approx(0.4 * len(grown), abs=1)
    foreign = texts(tmp_path, replace(night, event="foreign feed"))
    assert len(foreign) == len(grown)
    assert not set(" ".join(foreign).split()) & set(" ".join(grown).split()) - {"the", "a", "and"}
