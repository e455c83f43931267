"""Each format of text is recognized and read into the same documents; an error names the file and the line.
A dump gives the running text of its articles, without markup, and names what is no dump.
"""

import bz2
import gzip
import json
import re
import tracemalloc
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from clozeline.corpus.cleaning.documents import Document, DropReason, FileReading, RawFile
from clozeline.corpus.cleaning.portions import opened
from clozeline.corpus.cleaning.wikipedia import WikiPage, plain_text, wiki_pages
from clozeline.records.reading.files import label_of, matching_files
from clozeline.system.errors import DataError


def read(path, params, *, shapes: Counter[str] | None = None, quarantines: bool = False) -> list[Document]:
    named = [(file, label_of(file, path)) for file in matching_files(path, params.source.pattern)]
    files = [RawFile(file, name, name, quarantines) for file, name in named]
    units = opened(files, FileReading.of(params.source), shapes)
    return [document for unit in units for document in unit.documents()]


def texts(path, params) -> list[str]:
    return [document.text for document in read(path, params)]


RECORDS = [{"text": "first, with comma", "kind": "a"}, {"text": "second\r\nin two lines", "kind": "b"}]
JSON = "\n\n".join(map(json.dumps, RECORDS)).encode()
CSV = b'kind,text\r\na,"first, with comma"\r\nb,"second\r\nin two lines"\r\n'


def parquet_of(folder: Path, table: pa.Table) -> bytes:
    pq.write_table(table, folder / "written")
    return (folder / "written").read_bytes()


FILES = {
    "x.json.gz": gzip.compress(JSON),
    "shard_00": JSON,
    "x.csv": CSV,
    "x.tsv": CSV.replace(b',"', b'\t"').replace(b"kind,", b"kind\t"),
    "x.parquet": None,
}


@pytest.mark.parametrize("name", FILES)
def test_every_format_gives_the_same_documents_and_names_a_missing_field(tmp_path, params_of, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(FILES[name] or parquet_of(tmp_path, pa.Table.from_pylist(RECORDS)))
    found = read(path, params_of(label_field="kind"))
    assert found == [Document(record["text"], record["kind"]) for record in RECORDS]
    with pytest.raises(DataError, match=rf"(?s){name}.*no field `texts`.*kind") as caught:
        read(path, params_of(text_field="texts"))
    assert "to text" in caught.value.do


SENTENCES = [f"{'word ' * (number % 9 + 1)}in sentence {number}\n" for number in range(30)]


def test_in_a_file_with_hardly_a_blank_line_each_line_is_a_document_and_counted(tmp_path, params_of) -> None:
    for name, end in {"a.txt": "", "b.txt": "\n\n"}.items():
        (tmp_path / name).write_text("".join(SENTENCES) + end)
    (tmp_path / "c.txt").write_text("one\n\ntwo\n")
    shapes = Counter[str]()
    found = read(tmp_path, params_of(), shapes=shapes)
    assert [document.text for document in found] == [*SENTENCES, *SENTENCES, "one\n", "two\n"]
    assert shapes == {"line": 60, "paragraph": 2}


NOTES = "\na\nb\n\n \n\nc\n"
PAGES = (
    '<doc id="1" url="u" title="A &amp; B">\nA & B\n\nBody.\n\n</doc>\n<doc id="2" url="u" title="C">\nC\n\n</doc>\n'
)


@pytest.mark.parametrize(
    ("name", "content", "params", "expected"),
    [
        ("notes.txt", NOTES, {}, ["\na\nb\n"[1:], "c\n"]),
        ("notes.txt", NOTES, {"one_document_per": "line"}, ["a\n", "b\n", "c\n"]),
        ("notes.txt", NOTES, {"one_document_per": "file"}, [NOTES]),
        ("blank line.txt", "".join([*SENTENCES, "\n", "end\n"]), {}, ["".join(SENTENCES), "end\n"]),
        ("wrapped.txt", "wrapped at one width, as in a book\n" * 29 + "the end\n", {}, None),
        ("few.txt", "".join(SENTENCES[:10]), {}, None),
        ("code.txt", "{ this is C }\n", {}, None),
        ("x.csv", 'text\n"' + "long " * 50_000 + '"\n', {}, ["long " * 50_000]),
        ("x.jsonl", '{"text": null}\n{"text": "half a pair \\ud83d", "score": NaN}\n', {}, ["", "half a pair \ud83d"]),
        ("wiki_00", PAGES, {}, ["\n\nBody.", ""]),
        *(
            (name, content, {}, [])
            for name in ("x.csv", "x.tsv", "x.jsonl", "x.txt", "x")
            for content in ("", "\ufeff\n")
        ),
    ],
)
def test_a_file_is_divided_into_documents(tmp_path, params_of, name, content, params, expected) -> None:
    """None: the whole file is one."""
    (tmp_path / name).write_text(content, encoding="utf-8")
    assert texts(tmp_path / name, params_of(**params)) == ([content] if expected is None else expected)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("wiki_00", '<doc id="1" url="u" title="A">\nA\n\nBody\n', "line 1: the <doc>"),
        ("x.jsonl", '{"text": "fine"}\n\n[1, 2]\n', r"line 3: not a JSON object.*list"),
        ("x.jsonl", '{"text": "fine"}\n\n{broken\n', r"line 3: not a JSON object.*\{bro"),
        ("x.jsonl", '{"text": "fine"}\n{"text": 12}\n', "line 2: field `text` is not text"),
        ("x.csv", 'kind,text\na,"never closed\nb,x\n', "not CSV"),
        ("x.csv", "kind,text\na,one,two\n", "line 2: 3 columns, but the header has 2"),
        ("x.csv", 'kind,text\na,"quoted" then not\n', "line 2: not CSV"),
        ("x.csv", "id;text\n", "separated by a semicolon"),
        ("x.tsv", "id,text\n", "separated by a comma"),
        ("x.parquet", "PAR1", "not a complete Parquet"),
    ],
)
def test_what_is_not_of_the_format_is_named_with_its_line(tmp_path, params_of, name, content, message: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(DataError, match=rf"(?s){name}.*{message}") as caught:
        read(tmp_path / name, params_of())
    assert "separated" not in message or "text_field" not in caught.value.do


BAD_RECORDS = {
    "x.jsonl": (
        b'{"text": "good"}\n[1]\n{"body": "no text"}\n{"text": 7}\n{"text": "caf\xe9"}\n{"te\n{"text": "good"}\n',
        {2: "not a JSON object", 3: "no field", 4: "is not text", 5: "not UTF-8", 6: "not a JSON object"},
    ),
    "x.csv": (
        b"text,kind\ngood,a\none,two,three\ngood,b\ncaf\xe9,c\n",
        {3: "3 columns, but the header has 2", 5: "not UTF-8"},
    ),
    "x.txt": (b"good\n\ncaf\xe9\n\ngood\n", {3: "not UTF-8"}),
}


@pytest.mark.parametrize("name", BAD_RECORDS)
def test_bad_records_are_set_aside_with_place_and_reason_if_asked(tmp_path, params_of, name: str) -> None:
    content, reasons = BAD_RECORDS[name]
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(DataError):
        read(path, params_of())
    documents = read(path, params_of(), quarantines=True)
    assert [document.text.strip() for document in documents if not document.dropped] == ["good"] * 2
    bad = {int(re.search(r"line (\d+)", it.place)[1]): it.reason for document in documents if (it := document.bad)}
    assert bad.keys() == reasons.keys()
    assert all(reason in bad[line] for line, reason in reasons.items())
    assert "caf" not in str(bad), "the list repeats no content"


def test_an_endless_paragraph_is_refused_before_it_fills_the_memory(tmp_path, params_of, monkeypatch) -> None:
    monkeypatch.setattr("clozeline.corpus.cleaning.line_formats._MAX_DOCUMENT_CHARACTERS", 100)
    path = tmp_path / "x.txt"
    path.write_text("a sentence on its line\n" * 10)
    with pytest.raises(DataError, match=r"x\.txt: a paragraph is longer than 100 characters") as caught:
        read(path, params_of())
    assert "`source.one_document_per` to line" in caught.value.do
    assert len(texts(path, params_of(one_document_per="line"))) == 10


HEAD = """<mediawiki xmlns="http://www.mediawiki.org/xml/export-0.10/" version="0.10" xml:lang="de">
  <siteinfo><namespaces>
    <namespace key="0" /><namespace key="6">Datei</namespace><namespace key="14">Kategorie</namespace>
  </namespaces></siteinfo>
"""
TAIL = "</mediawiki>\n"


def page(title: str, wikitext: str, namespace: int = 0, extra: str = "") -> str:
    return (
        f"<page><title>{title}</title><ns>{namespace}</ns><id>1</id>{extra}"
        f"<revision><id>2</id><text xml:space='preserve'>{wikitext}</text></revision></page>\n"
    )


DUMP = (
    HEAD
    + page("Haus", "Ein '''Haus''' &amp;amp; Hof.[[Datei:h.jpg|mini|Bild]]")
    + page("Heim", "#WEITERLEITUNG [[Haus]]", extra='<redirect title="Haus" />')
    + page("Home", "#REDIRECT [[Haus]]")
    + page("Vorlage:X", "text", namespace=10)
    + page("Leer", "")
    + TAIL
)


def pages_of(path: Path) -> Iterator[WikiPage]:
    return wiki_pages(RawFile(path, path.name, path.name))


def read_dump(path: Path) -> list[Document]:
    return [document for unit in pages_of(path) for document in unit.documents()]


@pytest.mark.parametrize("compress", [bytes, bz2.compress])
def test_articles_become_text_and_other_pages_are_skipped_with_a_reason(tmp_path, compress) -> None:
    path = tmp_path / "dump.xml.bz2"
    path.write_bytes(compress(DUMP.encode()))
    assert read_dump(path) == [
        Document("Ein Haus & Hof.", path.name, "Haus"),
        Document("", path.name, "Heim", DropReason.REDIRECT),
        Document("", path.name, "Home", DropReason.REDIRECT),
        Document("", path.name, "Vorlage:X", DropReason.NOT_AN_ARTICLE),
        Document("", path.name, "Leer"),
    ]


@pytest.mark.parametrize(
    "content", [DUMP[: len(DUMP) // 2].encode(), bz2.compress(DUMP.encode())[:-10], b"no XML", b"<html><body/></html>"]
)
def test_an_incomplete_dump_is_refused_by_name(tmp_path, content: bytes) -> None:
    path = tmp_path / "dump.xml"
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"dump\.xml"):
        read_dump(path)


def test_read_pages_are_released_from_memory(tmp_path) -> None:
    path = tmp_path / "dump.xml"
    path.write_text(HEAD + page("Page", "word " * 20_000) * 200 + TAIL)
    units = pages_of(path)
    tracemalloc.start()
    assert sum(1 for _ in units) == 200
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert path.stat().st_size > 20_000_000
    assert peak_bytes < 3_000_000


@pytest.mark.parametrize(
    ("wikitext", "expected"),
    [
        ("'''Bold''' and ''italic''", "Bold and italic"),
        ("a {{template|with {{one}} inside}}b", "a b"),
        ("[[Paris]], [[France|the country]]", "Paris, the country"),
        ("[[File:x.jpg|thumb|A [[linked]] caption]]Text", "Text"),
        ("[[image:x.jpg]][[Category:Things]]Text", "Text"),
        ("Text[[fr:Texte]] [[:Category:Things]]", "Text Category:Things"),
        ("[https://example.org the site] [https://example.org]", "the site "),
        ("Fact.<ref>Book, p. 3</ref> More.<ref name='x' />", "Fact. More."),
        ("x <!-- hidden --> y", "x  y"),
        ("{|\n! head\n|-\n| cell\n|}\nAfter", "\nAfter"),
        ("| an unfinished\n|-\n! table\nAfter", "\n\n\nAfter"),
        ("== Heading ==\nbody", " Heading \nbody"),
        ("5 &nbsp;&lt; 6", "5 \xa0< 6"),
        ("Pi ({{IPA|pai}}) is <math>\\pi</math>.", "Pi is ."),
        ("__NOTOC__lost '' mark}} <ref>and tag", "lost  mark and tag"),
    ],
)
def test_markup_is_removed_and_words_are_kept(wikitext: str, expected: str) -> None:
    assert plain_text(wikitext).strip() == expected.strip()
