"""Claim: every kind of task has its knobs, and its examples are chosen as a person would choose them."""

from clozeline.artifacts.finetune.shown_item import ShownItem
from clozeline.params.finetuning import SECTIONS
from clozeline.tasks.kinds import KINDS
from clozeline.tasks.task import shown


def test_every_kind_has_a_section_in_params_and_the_other_way_round() -> None:
    assert set(KINDS) == set(SECTIONS)


def items(marks: str) -> list[ShownItem]:
    return [ShownItem({"text": str(place)}, "a", "a", mark == "+") for place, mark in enumerate(marks)]


def texts(chosen: list[ShownItem]) -> str:
    return "".join(item.given["text"] for item in chosen)


def test_as_many_wrong_items_as_right_ones_are_shown_in_their_order() -> None:
    assert texts(shown(items("+++-+-+-"), 4)) == "0135"


def test_right_and_wrong_items_fill_up_for_each_other() -> None:
    assert texts(shown(items("++++++-"), 4)) == "0126"
    assert texts(shown(items("----+---"), 4)) == "0124"
    assert texts(shown(items("-+"), 4)) == "01"
    assert shown(items("+-"), 0) == []
