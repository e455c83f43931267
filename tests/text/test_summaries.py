"""Claim: a docstring falls into what sums it up and what describes it, and its own name gives neither away."""

import pytest

from clozeline.text.summaries import Docstring, parted, without_name

CASES = {
    "Sort a list.\n\n    Stable, in place.": ("Sort a list.", "Stable, in place."),
    "Sort a list. It is stable.\nAnd quick.": ("Sort a list.", "It is stable. And quick."),
    "Sort a list": ("Sort a list", ""),
    "sort(x, /) -> list\n\nSort a\nlist.\n\nStable.": ("Sort a list.", "Stable."),
    "Sort e.g. numbers, as of 3.11 with keys.\n \nStable.": ("Sort e.g. numbers, as of 3.11 with keys.", "Stable."),
    "": ("", ""),
}


@pytest.mark.parametrize("text", CASES)
def test_the_first_sentence_sums_up_and_the_rest_describes(text: str) -> None:
    assert parted(text) == Docstring(*CASES[text])


def test_a_function_is_not_called_by_its_name() -> None:
    assert without_name("Call `fit_transform`, or Scaler.fit_transform(x).", "a.Scaler.fit_transform") == (
        "Call `this`, or this(x)."
    )
    assert without_name("A Scaler scales.", "a.Scaler") == "A this scales."


def test_a_name_that_is_a_word_stays_where_it_stands_as_a_word() -> None:
    text = "Sort what a.sort(x), sort (x) and `sort` sort; resort() does not."
    assert without_name(text, "a.sort") == "Sort what this(x), this (x) and `this` sort; resort() does not."
    assert without_name("Any text.", "") == "Any text."
