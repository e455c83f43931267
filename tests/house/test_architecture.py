"""docs/architecture.md names only rooms and files that exist."""

import re
from pathlib import Path

import pytest

from tests.house.test_rooms import FLOORS

PROJECT = Path(__file__).parents[2]
PACKAGE = PROJECT / "src" / "clozeline"
PAGE = (PROJECT / "docs" / "architecture.md").read_text(encoding="utf-8")
NAMED = sorted({name for name in re.findall(r"`([\w/.]+/[\w/.]*|\w+\.(?:py|yaml))`", PAGE) if "<" not in name})


@pytest.mark.parametrize("name", NAMED)
def test_every_path_named_on_the_page_exists(name: str) -> None:
    assert any((folder / name).exists() for folder in (PROJECT, PACKAGE))


def test_the_page_has_every_room_in_the_order_of_the_floors() -> None:
    table = PAGE.partition("## The rooms, from the roof down")[2].partition("\n## ")[0]
    told = [re.findall(r"`(\w+)`", row.split("|")[1]) for row in table.splitlines() if row.startswith("| `")]
    floor_of = {room: place for place, floor in enumerate(FLOORS) for room in floor}
    assert {room for row in told for room in row} == set(floor_of) - {"errors", "progress", "workspace"}
    places = [floor_of[row[0]] for row in told]
    assert places == sorted(places)
