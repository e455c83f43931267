"""Claim: every kind of task has its knobs, and its examples are chosen as a person would choose them."""

from clozeline.params.tasks import SECTIONS
from clozeline.records.finetune.task_metrics import ShownItem
from clozeline.tasks.kinds import KINDS
from clozeline.tasks.task import shown


def test_kinds_and_sections_of_params_match() -> None:
    assert set(KINDS) == set(SECTIONS)


def items(marks: str) -> list[ShownItem]:
    return [ShownItem({"text": str(place)}, "a", "a", mark == "+") for place, mark in enumerate(marks)]


def texts(chosen: list[ShownItem]) -> str:
    return "".join(item.given["text"] for item in chosen)


def test_equally_many_wrong_and_right_items_are_shown_in_order() -> None:
    assert texts(shown(items("+++-+-+-"), 4)) == "0135"


def test_too_few_wrong_items_are_made_up_with_right_ones_and_vice_versa() -> None:
    assert texts(shown(items("++++++-"), 4)) == "0126"
    assert texts(shown(items("----+---"), 4)) == "0124"
    assert texts(shown(items("-+"), 4)) == "01"
    assert shown(items("+-"), 0) == []
