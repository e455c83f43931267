"""The project of a night has valid params and the text that its event says."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from clozeline.params.reading import read_params
from tests.make.projects import SENTENCES
from tests.month.project import prepare
from tests.month.scenario import Event, Night, nights


def texts(root: Path, night: Night) -> list[str]:
    """Prepare the night; return the texts that it finds."""
    prepare(root, night)
    return [json.loads(line)["text"] for line in (root / SENTENCES).read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize("event", ["quiet", "worse model", "better model"])
def test_the_params_of_every_night_are_valid(event: Event, tmp_path: Path) -> None:
    first, second = (replace(night, event=event) for night in nights(2, seed=0))
    starts = []
    for night in (first, second):
        prepare(tmp_path, night)
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
