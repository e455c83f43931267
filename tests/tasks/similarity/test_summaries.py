"""Claim: a docstring is split into summary and description, and neither contains its own name."""

import random
import re

import pytest

from clozeline.tasks.similarity.data import Docstring, parted, without_name

CASES = {
    "Sort a list.\n\n    Stable, in place.": ("Sort a list.", "Stable, in place."),
    "Sort a list. It is stable.\nAnd quick.": ("Sort a list.", "It is stable. And quick."),
    "Sort a list": ("Sort a list", ""),
    "sort(x, /) -> list\n\nSort a\nlist.\n\nStable.": ("Sort a list.", "Stable."),
    "Sort e.g. numbers, as of 3.11 with keys.\n \nStable.": ("Sort e.g. numbers, as of 3.11 with keys.", "Stable."),
    "": ("", ""),
}


@pytest.mark.parametrize("text", CASES)
def test_a_docstring_is_divided_into_first_sentence_and_rest(text: str) -> None:
    assert parted(text) == Docstring(*CASES[text])


def test_the_name_of_a_function_is_replaced_in_its_docstring() -> None:
    assert without_name("Call `fit_transform`, or Scaler.fit_transform(x).", "a.Scaler.fit_transform") == (
        "Call `this`, or this(x)."
    )
    assert without_name("A Scaler scales.", "a.Scaler") == "A this scales."


def test_a_name_is_replaced_in_calls_but_not_as_a_plain_word() -> None:
    text = "Sort what a.sort(x), sort (x) and `sort` sort; resort() does not."
    assert without_name(text, "a.sort") == "Sort what this(x), this (x) and `this` sort; resort() does not."
    assert without_name("Any text.", "") == "Any text."


def by_a_pattern_of_its_own(text: str, name: str) -> str:
    """Return the expected result of `without_name` for names of word characters, by a pattern with the name in it."""
    if name.isalpha() and name.islower():
        return re.sub(rf"(?:\b[\w.]+\.{name}\b|\b{name}\b(?=\s?\()|(?<=`){name}(?=`))", "this", text)
    return re.sub(rf"\b(?:[\w.]+\.)?{name}\b", "this", text)


@pytest.mark.parametrize("name", ["aa", "sort", "Aa", "_a", "a1", "größe"])
def test_replacing_a_name_gives_the_result_of_a_regular_expression(name: str) -> None:
    draw = random.Random(name)
    pieces = [name, name, name.upper(), name[0], "x", ".", ".", " ", "(", "`", "é", "\n", "-"]
    num_changed = 0
    for _ in range(3000):
        text = "".join(draw.choices(pieces, k=draw.randint(1, 12)))
        expected = by_a_pattern_of_its_own(text, name)
        assert without_name(text, f"module.{name}") == expected, text
        num_changed += expected != text
    assert num_changed > 100


def test_a_text_with_the_placeholder_character_stays_unchanged() -> None:
    assert without_name("\ua500: call a.sort(x).", "a.sort") == "\ua500: call a.sort(x)."
