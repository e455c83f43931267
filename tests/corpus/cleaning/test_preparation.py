"""Claim: batches that an earlier run kept are the batches that this run would compute."""

import random
import re
import unicodedata
from collections.abc import Callable, Mapping
from pathlib import Path

import ftfy
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clozeline.cluster.ledger import Ledger
from clozeline.corpus.cleaning import preparation
from clozeline.corpus.cleaning.documents import DropReason, FileReading, OpenFile, RawFile, RawText
from clozeline.corpus.cleaning.line_formats import JsonBlock
from clozeline.corpus.cleaning.preparation import (
    ALTERATIONS,
    BatchCounts,
    PreparationSettings,
    ReadText,
    alterations,
    clean,
    code_of_batches,
    prepare,
    prepared,
    read_texts,
    split_long,
)
from clozeline.corpus.cleaning.wikipedia import WikiPage
from clozeline.records.reading.streams import read_blocks
from clozeline.records.words.shingles import Banding
from clozeline.system.content import sha256_of
from clozeline.system.workers import Workers

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


Prepared = tuple[pa.RecordBatch, BatchCounts]
SETTINGS = PreparationSettings(20, 500, decode_entities=True, banding=Banding.finding(0.5))


@pytest.fixture
def documents(words: Callable[[int, int], str]) -> list[str]:
    return [*(words(seed, 40) for seed in range(200)), "short"]


@pytest.fixture
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clozeline.corpus.cleaning.portions._BATCH_BYTES", 5_000)


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that gets the number of units of each batch that is computed."""
    sizes: list[int] = []
    monkeypatch.setattr(preparation, "prepare", lambda units, how: sizes.append(len(units)) or prepare(units, how))
    return sizes


def run(documents: list[str], folder: Path, settings: PreparationSettings = SETTINGS) -> list[Prepared]:
    """Prepare a file with a document in each line, with what is kept in `folder`."""
    path = folder.parent / "raw" / "lines.txt"
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(f"{document}\n" for document in documents))
    file = RawFile(path, path.name, "source", sha256=sha256_of(path))
    raw = RawText((file,), FileReading("files", "text", None, "line"), path.stat().st_size)
    ledger = Ledger(folder, code_of_batches(settings), Workers(None, 1))
    records = list(prepared(raw, settings, ledger, ReadText()))
    assert sum(record.stored_bytes for record in records) == pytest.approx(raw.total_bytes, abs=len(records))
    ledger.keep_only({record.key for record in records})
    return [(read_texts(record.texts).to_batches()[0], record.counts) for record in records]


@pytest.mark.usefixtures("small_batches")
def test_kept_batches_equal_computed_ones(documents, computed, tmp_path: Path) -> None:
    first = run(documents, tmp_path / "kept")
    assert sum(computed) == len(documents)
    assert len(first) > 5
    computed.clear()
    assert run(documents, tmp_path / "kept") == first
    assert computed == []
    assert sum(counts.dropped[DropReason.TOO_SHORT] for _, counts in first) == 1


def test_counts_of_a_kept_batch_equal_computed_ones(tmp_path: Path, words) -> None:
    """The long document counts once as read and once as cut; each of its texts has an ordinal."""
    documents = [words(1, 300), "short"]
    ((texts, counts),) = run(documents, tmp_path / "kept")
    assert (counts.num_read, counts.num_split) == (2, 1)
    assert counts.num_ordinals > 3
    assert run(documents, tmp_path / "kept") == [(texts, counts)]


@pytest.mark.usefixtures("small_batches")
@pytest.mark.parametrize("place", [0, 100, 201])
def test_new_text_recomputes_only_the_neighbouring_batches(
    documents, computed, tmp_path: Path, place: int, words
) -> None:
    run(documents, tmp_path / "kept")
    computed.clear()
    grown = [*documents[:place], words(999, 40), *documents[place:]]
    found = run(grown, tmp_path / "kept")
    assert 1 <= sum(computed) < 120
    assert found == run(grown, tmp_path / "empty")


def test_a_damaged_batch_is_computed_again(documents, computed, tmp_path: Path) -> None:
    first = run(documents, tmp_path / "kept")
    computed.clear()
    for path in tmp_path.glob("kept/*/*/texts.arrow"):
        content = bytearray(path.read_bytes())
        content[random.Random(1).randrange(len(content))] ^= 1
        path.write_bytes(content)
    assert run(documents, tmp_path / "kept") == first
    assert sum(computed) == len(documents)


@pytest.mark.usefixtures("small_batches")
def test_only_the_batches_of_the_last_run_are_kept(documents, tmp_path: Path) -> None:
    run(documents, tmp_path / "kept")
    run(documents[:3], tmp_path / "kept")
    assert len(list(tmp_path.glob("kept/*/*"))) == 1


def test_other_settings_recompute_all_batches(documents, computed, tmp_path: Path) -> None:
    run(documents, tmp_path / "kept")
    other = PreparationSettings(30, 500, decode_entities=True, banding=SETTINGS.banding)
    run(documents, tmp_path / "kept", other)
    assert sum(computed) == 2 * len(documents)


def test_other_code_or_package_versions_recompute_all_batches(documents, computed, tmp_path: Path, monkeypatch) -> None:
    run(documents, tmp_path / "kept")
    monkeypatch.setattr(preparation, "_CODE", ("text",))
    run(documents, tmp_path / "kept")
    monkeypatch.setattr(preparation, "versions_used", lambda: {"ftfy": "0"})
    run(documents, tmp_path / "kept")
    assert sum(computed) == 3 * len(documents)


def block(path: Path, content: bytes, label: str = "a", number: int = 0) -> JsonBlock:
    path.write_bytes(content)
    found = list(read_blocks(path))[number]
    return JsonBlock(found, OpenFile(RawFile(path, path.name, label), FileReading("files", "text", None, "line")))


def test_the_identity_of_a_block_depends_on_its_label_and_not_on_its_location(tmp_path: Path) -> None:
    one = block(tmp_path / "one", b'{"text": "some"}\n')
    assert block(tmp_path / "two", b'{"text": "some"}\n').identity() == one.identity()
    assert block(tmp_path / "two", b'{"text": "some"}\n', label="b").identity() != one.identity()
    assert block(tmp_path / "two", b'{"text": "same"}\n').identity() != one.identity()


def test_the_first_block_of_a_file_has_another_identity_than_equal_later_lines(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("clozeline.records.reading.streams._BLOCK_BYTES", 10)
    content = b'{"text": "some"}\n' * 2
    one, two = (block(tmp_path / "one", content, number=number) for number in (0, 1))
    assert one.block.content == two.block.content
    assert one.identity() != two.identity()


def test_the_names_of_namespaces_identify_a_page_in_any_order() -> None:
    names = [f"name{number}" for number in range(50)]
    one, two = (WikiPage("t", "text", "a", frozenset(some), None) for some in (names, names[::-1]))
    assert one.identity() == two.identity()
    assert WikiPage("t", "text", "a", frozenset(names[1:]), None).identity() != one.identity()
