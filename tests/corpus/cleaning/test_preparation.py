"""Claim: batches that an earlier run kept are the batches that this run would compute."""

import random
import re
import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import replace
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
from clozeline.corpus.cleaning.portions import ReadText
from clozeline.corpus.cleaning.preparation import ALTERATIONS, BatchCounts, alterations, clean, prepare, split_long
from clozeline.corpus.cleaning.wikipedia import WikiPage
from clozeline.records.reading.streams import read_blocks
from clozeline.records.words.shingles import Banding
from clozeline.system.files import sha256_of
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
dirty_text = st.lists(st.sampled_from(DIRT), max_size=60).map("".join)
plain_text = st.text(alphabet="ab \t\n", max_size=60)


def cleaned_without_shortcuts(text: str, decode_entities: bool) -> str:
    """Return the cleaned text by running every step on every character."""
    plain = {"uncurl_quotes": False, "fix_latin_ligatures": False, "fix_character_width": False, "explain": False}
    text = ftfy.fix_text(re.sub("[\ud800-\udfff]", "?", text), unescape_html=decode_entities, **plain)
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


@given(dirty_text | plain_text, st.booleans())
@settings(max_examples=1_000, deadline=None)
def test_shortcuts_for_plain_text_and_white_space_change_no_character(text: str, decode_entities: bool) -> None:
    """Clean text can be encoded, and is in NFC."""
    cleaned = clean(text, decode_entities=decode_entities)
    assert cleaned == cleaned_without_shortcuts(text, decode_entities)
    assert unicodedata.is_normalized("NFC", cleaned.encode().decode())


@given(st.text(alphabet="ab. \n", max_size=300), st.integers(min_value=1, max_value=40))
@settings(deadline=None)
def test_cutting_a_long_text_loses_only_white_space(text: str, max_characters: int) -> None:
    parts = split_long(text, max_characters)
    assert all(len(part) <= max_characters for part in parts)
    assert "".join("".join(parts).split()) == "".join(text.split())


@pytest.mark.parametrize(
    ("text", "max_words", "parts"),
    [
        ("one two\nthree\n\nfour five", None, ["one two\nthree", "four five"]),
        ("one two\nthree four five", None, ["one two", "three four five"]),
        ("One two. Three four five", None, ["One two.", "Three four five"]),
        ("onetwothreefourfivesix", None, ["onetwothreefour", "fivesix"]),
        ("1 2 3 4 5", 2, ["1 2", "3 4", "5"]),
        ("1 2", 2, ["1 2"]),
    ],
)
def test_a_long_text_is_cut_at_the_best_break_and_at_a_number_of_words(text, max_words, parts: list[str]) -> None:
    assert split_long(text, 15, max_words) == parts


def test_every_altered_character_is_of_one_kind_and_found_by_the_quick_search() -> None:
    kinds = {
        "\ud83d": "lone_surrogates",
        "\x00": "nul",
        "\x1b": "control_characters",
        "\ufeff": "zero_width",
        "\u202e": "direction_marks",
    }
    for character, kind in kinds.items():
        assert list(alterations(f"a{character}b")) == [kind]
        assert character not in clean(f"a{character}b", decode_entities=True)
    every = [chr(code) for code in range(0x10000)]
    for pattern in ALTERATIONS.values():
        assert all(list(alterations(character)) for character in every if pattern.search(character))
    assert not list(alterations("a é\n\t\u3000"))


SETTINGS = preparation.PreparationSettings(20, 500, decode_entities=True, banding=Banding.finding(0.5))
Prepared = tuple[pa.RecordBatch, BatchCounts]
Run = Callable[..., list[Prepared]]


@pytest.fixture
def documents(words) -> list[str]:
    return [*(words(seed, 40) for seed in range(200)), "short"]


@pytest.fixture(autouse=True)
def _small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clozeline.corpus.cleaning.portions._BATCH_BYTES", 5_000)


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that gets the number of units of each batch that is computed."""
    sizes: list[int] = []
    monkeypatch.setattr(preparation, "prepare", lambda units, how: sizes.append(len(units)) or prepare(units, how))
    return sizes


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """`run(documents, kept="kept")`: a file with a document in each line, prepared with what is kept in a folder."""

    def run(documents: list[str], kept: str = "kept", settings=SETTINGS) -> list[Prepared]:
        path = tmp_path / "lines.txt"
        path.write_text("".join(f"{document}\n" for document in documents))
        file = RawFile(path, path.name, "source", sha256=sha256_of(path))
        raw = RawText((file,), FileReading("files", "text", None, "line"), path.stat().st_size)
        ledger = Ledger(tmp_path / kept, preparation.code_of_batches(settings), Workers(None, 1))
        records = list(preparation.prepared(raw, settings, ledger, ReadText()))
        assert sum(record.stored_bytes for record in records) == pytest.approx(raw.total_bytes, abs=len(records))
        ledger.keep_only({record.key for record in records})
        return [(preparation.read_texts(record.texts).to_batches()[0], record.counts) for record in records]

    return run


def test_kept_batches_equal_computed_ones_and_damaged_ones_are_made_again(documents, run, computed, tmp_path) -> None:
    first = run(documents)
    assert sum(computed) == len(documents)
    assert len(first) > 5
    assert sum(counts.dropped[DropReason.TOO_SHORT] for _, counts in first) == 1
    computed.clear()
    assert run(documents) == first
    assert computed == []
    for path in tmp_path.glob("kept/*/*/texts.arrow"):
        content = bytearray(path.read_bytes())
        content[random.Random(1).randrange(len(content))] ^= 1
        path.write_bytes(content)
    assert run(documents) == first
    assert sum(computed) == len(documents)


def test_counts_of_a_kept_batch_equal_computed_ones(run: Run, words, tmp_path: Path) -> None:
    """The long document counts once as read and once as cut; each of its texts has an ordinal."""
    ((texts, counts),) = run([words(1, 300), "short"])
    assert (counts.num_read, counts.num_split) == (2, 1)
    assert counts.num_ordinals > 3
    assert run([words(1, 300), "short"]) == [(texts, counts)]
    run([words(2, 40)])
    assert len(list(tmp_path.glob("kept/*/*"))) == 1, "only the batches of the last run are kept"


def block(path: Path, content: bytes, label: str = "a", number: int = 0) -> bytes:
    path.write_bytes(content)
    found = list(read_blocks(path))[number]
    file = OpenFile(RawFile(path, path.name, label), FileReading("files", "text", None, "line"))
    return JsonBlock(found, file).identity()


def test_the_identity_of_a_block_depends_on_label_and_content_and_not_on_location(tmp_path: Path, monkeypatch) -> None:
    """The first block of a file has another identity than equal later lines, and so have pages of other namespaces."""
    monkeypatch.setattr("clozeline.records.reading.streams._BLOCK_BYTES", 10)
    some = b'{"text": "some"}\n'
    one = block(tmp_path / "one", some)
    assert block(tmp_path / "two", some) == one
    others = (
        block(tmp_path / "two", some, label="b"),
        block(tmp_path / "two", b'{"text": "same"}\n'),
        block(tmp_path / "two", some * 2, number=1),
    )
    assert len({one, *others}) == 4
    names = [f"name{number}" for number in range(50)]
    one, two, other = (WikiPage("t", "", "a", frozenset(some), None) for some in (names, names[::-1], names[1:]))
    assert one.identity() == two.identity() != other.identity()


@pytest.mark.parametrize("place", [0, 100, 201])
def test_new_text_recomputes_only_the_neighbouring_batches(documents, run: Run, computed, place: int, words) -> None:
    run(documents)
    computed.clear()
    grown = [*documents[:place], words(999, 40), *documents[place:]]
    found = run(grown)
    assert 1 <= sum(computed) < 120
    assert found == run(grown, "empty")


def test_other_settings_code_or_package_versions_recompute_all_batches(documents, run, computed, monkeypatch) -> None:
    run(documents)
    run(documents, settings=replace(SETTINGS, min_characters=30))
    monkeypatch.setattr(preparation, "_CODE", ("text",))
    run(documents)
    monkeypatch.setattr(preparation, "versions_used", lambda: {"ftfy": "0"})
    run(documents)
    assert sum(computed) == 4 * len(documents)
