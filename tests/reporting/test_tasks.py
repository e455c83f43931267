"""Confusion matrix and mistakes, for twenty classes and for too many."""

import re
from collections import Counter
from xml.etree import ElementTree

from clozeline.reporting.tasks import MOST_CLASSES, matrix


def cells(html: str) -> dict[tuple[str, str], int]:
    """Return the counts of the matrix by (actual, predicted)."""
    (table,) = re.findall(r'<table class="confusion">.*?</table>', html, re.DOTALL)
    root = ElementTree.fromstring(table)
    columns = ["".join(head.itertext()) for head in root.findall("thead/tr/th")]
    told = {}
    for row in root.findall("tbody/tr"):
        actual = row.findtext("th", "")
        for said, cell in zip(columns, row.findall("td"), strict=True):
            if cell.text != "·":
                told[actual, said] = int((cell.text or "").replace(",", ""))
    return told


def test_the_matrix_counts_every_pair() -> None:
    pairs = [(f"class {place % 20}", f"class {place * place % 20}") for place in range(500)]
    assert cells(matrix("task", pairs)) == dict(Counter(pairs))


def test_the_rarest_of_many_classes_are_grouped_and_no_item_is_lost() -> None:
    pairs = [(f"class {place % 60:02}", f"class {(place if place % 3 else place + 1) % 60:02}") for place in range(900)]
    pairs += [("frequent", "frequent")] * 100
    told = cells(matrix("task", pairs))
    assert len({actual for actual, _ in told}) == MOST_CLASSES
    assert sum(told.values()) == len(pairs)
    assert told["frequent", "frequent"] == 100


def test_the_most_frequent_mistake_is_named_first_with_its_share() -> None:
    pairs = [("a", "a")] * 6 + [("a", "b")] * 2 + [("b", "a")] * 3 + [("b", "b")]
    first, second = re.findall(
        r"<tr><th scope=\"row\">(.)</th><td>(.)</td><td.*?>(\d+)</td><td.*?>(.+?)</td>", matrix("task", pairs)
    )
    assert first[:3] == ("b", "a", "3")
    assert first[3].startswith("75.0")
    assert second[:3] == ("a", "b", "2")
    assert "mistakes" not in matrix("task", [("a", "a")])
