import re
import unicodedata
from collections.abc import Mapping

import ftfy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clozeline.corpus.cleaning.preparation import ALTERATIONS, alterations, clean, split_long

INVISIBLE = "[\x00-\x08\x0e-\x1f\x7f-\x9f\u00ad\u200b\u200e\u200f\u202a-\u202e\u2060-\u2064\u2066-\u2069\ufeff]"
STEPS: Mapping[str, str] = {
    r"\r\n|[\r\v\f\x1c-\x1e\x85\u2028\u2029]": "\n",
    INVISIBLE: "",
    "[\u00a0\u1680\u2000-\u200a\u202f\u205f\u3000]": " ",
    r"(?<=\S)[ \t]+": " ",
    r"(?m)[ \t]+$": "",
    r"\n{3,}": "\n\n",
}
DIRT = [
    *("\t", " ", "  ", "\n", "\r\n", "\v", "\x1f", "\x85", "\u2028", "\u00a0", "\u3000", "\u200b", "\x1b[31m", "\x7f"),
    *("&", "&amp;", "&amp;lt;", "&copy", "&#8364;", "é", "e\u0301", "Ã¶", "â€™", "”", "ﬁ", "\udc80"),
    *("a", "B", "1", "."),
]


def cleaned_without_shortcuts(text: str, decode_entities: bool) -> str:
    """Return the cleaned text by running every step on every character."""
    text = ftfy.fix_text(
        re.sub("[\ud800-\udfff]", "?", text),
        unescape_html=decode_entities,
        uncurl_quotes=False,
        fix_latin_ligatures=False,
        fix_character_width=False,
        explain=False,
    )
    for pattern, replacement in STEPS.items():
        text = re.sub(pattern, replacement, text)
    return text.strip()


@pytest.mark.parametrize(
    ("dirty", "expected"),
    [
        ("cafe\u0301", "café"),
        ("Tom &amp; Jerry &lt;3 &#8364;5", "Tom & Jerry <3 €5"),
        ("twice &amp;lt;escaped&amp;gt;", "twice <escaped>"),
        ("a=1&copy=2", "a=1&copy=2"),
        ("bell\x07 null\x00 del\x7f", "bell null del"),
        ("zero\u200bwidth soft\u00adhyphen \ufeffmark", "zerowidth softhyphen mark"),
        ("no\u00a0break and\u3000wide", "no break and wide"),
        ("one\r\ntwo\rthree\u2028four", "one\ntwo\nthree\nfour"),
        ("  \n\n a   b \t c  \n\n\n\n\nd\n", "a b c\n\nd"),
        ("def f():\n    return  1", "def f():\n    return 1"),
        ("schÃ¶n", "schön"),
        ("“curly” ﬁne", "“curly” ﬁne"),
        ("family \U0001f468\u200d\U0001f469", "family \U0001f468\u200d\U0001f469"),
        (" \n\t\u200b ", ""),
    ],
)
def test_broken_text_is_repaired_and_the_rest_stays(dirty: str, expected: str) -> None:
    assert clean(dirty, decode_entities=True) == expected


def test_entities_are_kept_unless_decoding_is_on() -> None:
    assert clean("escape < as &lt; — always", decode_entities=False) == "escape < as &lt; — always"


@given(st.lists(st.sampled_from(DIRT), max_size=60).map("".join), st.booleans())
@settings(max_examples=1_000, deadline=None)
def test_shortcuts_for_plain_text_change_no_character(text: str, decode_entities: bool) -> None:
    expected = cleaned_without_shortcuts(text, decode_entities)
    assert clean(text, decode_entities=decode_entities) == expected


@given(st.text(alphabet="ab \t\n", max_size=60))
@settings(max_examples=1_000, deadline=None)
def test_shortcuts_for_white_space_change_no_character(text: str) -> None:
    assert clean(text, decode_entities=True) == cleaned_without_shortcuts(text, True)


@given(st.text(alphabet=st.characters(codec=None), max_size=200))
@settings(max_examples=200, deadline=None)
def test_clean_text_is_nfc_encodable_and_free_of_controls(text: str) -> None:
    cleaned = clean(text, decode_entities=True)
    cleaned.encode("utf-8")
    assert unicodedata.is_normalized("NFC", cleaned)
    assert not any(unicodedata.category(letter) == "Cc" and letter not in "\n\t" for letter in cleaned)
    assert cleaned == cleaned.strip()
    assert "\n\n\n" not in cleaned


@given(st.text(alphabet="ab. \n", max_size=300), st.integers(min_value=1, max_value=40))
@settings(deadline=None)
def test_cutting_a_long_text_loses_only_white_space(text: str, max_characters: int) -> None:
    parts = split_long(text, max_characters)
    assert all(len(part) <= max_characters for part in parts)
    assert "".join("".join(parts).split()) == "".join(text.split())


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("one two\nthree\n\nfour five", ["one two\nthree", "four five"]),
        ("one two\nthree four five", ["one two", "three four five"]),
        ("One two. Three four five", ["One two.", "Three four five"]),
        ("onetwothreefourfivesix", ["onetwothreefour", "fivesix"]),
    ],
)
def test_a_long_text_is_cut_at_the_best_break(text: str, parts: list[str]) -> None:
    assert split_long(text, 15) == parts


@pytest.mark.parametrize(
    ("character", "kind"),
    [
        ("\ud83d", "lone_surrogates"),
        ("\x00", "nul"),
        ("\x1b", "control_characters"),
        ("\u200b", "zero_width"),
        ("\ufeff", "zero_width"),
        ("\u202e", "direction_marks"),
    ],
)
def test_a_character_that_cleaning_leaves_out_is_of_one_kind(character: str, kind: str) -> None:
    assert list(alterations(f"a{character}b")) == [kind]
    assert character not in clean(f"a{character}b", decode_entities=True)


@given(st.text(st.sampled_from("a é\n\t\u3000")))
def test_text_without_such_characters_counts_as_unaltered(text: str) -> None:
    assert list(alterations(text)) == []


def test_every_kind_of_altered_character_is_found_by_the_quick_search() -> None:
    every = [chr(code) for code in range(0x10000)]
    for pattern in ALTERATIONS.values():
        assert all(list(alterations(character)) for character in every if pattern.search(character))


def test_a_text_is_cut_at_a_number_of_words() -> None:
    assert split_long("one two three four five", 100, 2) == ["one two", "three four", "five"]
    assert split_long("one two", 100, 2) == ["one two"]
