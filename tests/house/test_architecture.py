"""docs/architecture.md names only rooms and files that exist."""

import re
from collections import Counter

from ruamel.yaml import YAML

from tests.house.test_rooms import FLOORS, PACKAGE, PROJECT

PAGE = (PROJECT / "docs" / "architecture.md").read_text(encoding="utf-8")
A_PATH = re.compile(r"`([\w/.]+/[\w/.]*|\w+\.(?:py|yaml))`")
NAMED = sorted({name for name in A_PATH.findall(PAGE) if "<" not in name})
# Files and folders that a row of "Where do I add …" names; tests/house/test_size.py limits the rows.
MOST_FILES = 4


def test_every_path_named_on_the_page_exists() -> None:
    assert [name for name in NAMED if not any((folder / name).exists() for folder in (PROJECT, PACKAGE))] == []


def test_the_page_lists_every_room_in_floor_order() -> None:
    table = PAGE.partition("## The rooms, from the roof down")[2].partition("\n## ")[0]
    told = [re.findall(r"`(\w+)`", row.split("|")[1]) for row in table.splitlines() if row.startswith("| `")]
    floor_of = {room: place for place, floor in enumerate(FLOORS) for room in floor}
    assert {room for row in told for room in row} == set(floor_of) - {"errors", "progress", "workspace"}
    places = [floor_of[row[0]] for row in told]
    assert places == sorted(places)


def test_the_page_names_every_section_with_individually_listed_knobs() -> None:
    stages = YAML(typ="safe").load(PROJECT / "dvc.yaml")["stages"].values()
    files = [file for stage in stages for file in stage.get("do", stage).get("params", [])]
    listed = [name for file in files for knobs in file.values() for name in knobs]
    sections = [name.rpartition(".")[0] for name in listed if "." in name and "$" not in name]
    one_by_one = {section for section, num_knobs in Counter(sections).items() if num_knobs > 1}
    rule = PAGE.partition("2. **`dvc.yaml`**")[2].partition(" one by one")[0]
    assert set(re.findall(r"`([\w.]+)`", rule)) - {"snapshot"} == one_by_one


def test_a_usual_change_touches_a_few_files() -> None:
    table = PAGE.partition("## Where do I add …")[2].partition("\n## ")[0]
    _, *rows = (row for row in table.splitlines() if row.startswith("| "))
    assert rows
    assert [row for row in rows if not 1 <= len(set(A_PATH.findall(row))) <= MOST_FILES] == []
