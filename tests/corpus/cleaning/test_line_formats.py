"""Each format of text is recognized and read into the same documents; an error names the file and the line."""

import gzip
import json
import re
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from clozeline.corpus.cleaning.documents import Document, FileReading, RawFile
from clozeline.corpus.cleaning.portions import opened
from clozeline.corpus.cleaning.preparation import clean
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
CSV = 'kind,text\r\na,"first, with comma"\r\nb,"second\r\nin two lines"\r\n'


def write_parquet(path: Path) -> None:
    pq.write_table(pa.Table.from_pylist(RECORDS), path)


WRITERS = {
    "x.jsonl": lambda path: path.write_text("\n\n".join(map(json.dumps, RECORDS))),
    "x.json.gz": lambda path: path.write_bytes(gzip.compress("\n".join(map(json.dumps, RECORDS)).encode())),
    "shard_00": lambda path: path.write_text("\n".join(map(json.dumps, RECORDS))),
    "x.csv": lambda path: path.write_bytes(CSV.encode()),
    "x.csv.gz": lambda path: path.write_bytes(gzip.compress(CSV.encode())),
    "x.tsv": lambda path: path.write_bytes(CSV.replace(',"', '\t"').replace("kind,", "kind\t").encode()),
    "x.parquet": write_parquet,
}


@pytest.mark.parametrize("name", WRITERS)
def test_every_format_gives_the_same_documents(tmp_path, params_of, name: str) -> None:
    WRITERS[name](tmp_path / name)
    found = read(tmp_path / name, params_of(label_field="kind"))
    assert found == [Document(record["text"], record["kind"]) for record in RECORDS]


@pytest.mark.parametrize("name", WRITERS)
def test_every_format_reports_a_missing_field_and_the_existing_ones(tmp_path, params_of, name: str) -> None:
    WRITERS[name](tmp_path / name)
    with pytest.raises(DataError, match="no field `texts`") as caught:
        read(tmp_path / name, params_of(text_field="texts"))
    assert name in caught.value.problem
    assert "kind" in str(caught.value)
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


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        ([*SENTENCES, "\n", "the end\n"], "a blank line"),
        (["wrapped at one width, as in a book\n"] * 29 + ["the end\n"], "wrapped lines"),
        (SENTENCES[:10], "too few lines to tell"),
    ],
)
def test_other_plain_text_is_divided_at_blank_lines_only(tmp_path, params_of, lines: list[str], reason: str) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("".join(lines))
    assert len(texts(path, params_of())) == 1 + ("\n" in lines), reason


@pytest.mark.parametrize(
    ("name", "content", "params", "expected"),
    [
        ("notes.txt", "\na\nb\n\n \n\nc\n", {"one_document_per": "paragraph"}, ["a\nb\n", "c\n"]),
        ("notes.txt", "\na\nb\n\n \n\nc\n", {"one_document_per": "line"}, ["a\n", "b\n", "c\n"]),
        ("notes.txt", "\na\nb\n\n \n\nc\n", {"one_document_per": "file"}, ["\na\nb\n\n \n\nc\n"]),
        ("code.txt", "{ this is C }\n", {}, ["{ this is C }\n"]),
        ("x.csv", 'text\n"' + "long " * 50_000 + '"\n', {}, ["long " * 50_000]),
        ("x.jsonl", '{"text": null}\n', {}, [""]),
    ],
    ids=["paragraphs", "lines", "a file", "text like JSON", "a field longer than csv's limit", "null is empty"],
)
def test_a_file_is_divided_into_documents(
    tmp_path, params_of, name: str, content: str, params: dict[str, str], expected: list[str]
) -> None:
    (tmp_path / name).write_text(content)
    assert texts(tmp_path / name, params_of(**params)) == expected


def test_output_of_wikiextractor_is_recognized_by_its_first_line(tmp_path, params_of) -> None:
    path = tmp_path / "wiki_00"
    path.write_text(
        '<doc id="1" url="?curid=1" title="A &amp; B">\nA & B\n\nBody of it.\n\n</doc>\n'
        '<doc id="2" url="?curid=2" title="C">\nC\n\n</doc>\n'
    )
    assert read(path, params_of()) == [
        Document("\n\nBody of it.", "wiki_00", "A & B"),
        Document("", "wiki_00", "C"),
    ]


def test_a_folder_is_read_in_the_order_of_names_without_hidden_files(tmp_path, params_of) -> None:
    for name in ("b.txt", "a/z.txt", "a/b.txt", ".hidden.txt", ".git/x.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f"text of {name}")
    assert [document.source for document in read(tmp_path, params_of())] == ["a/b.txt", "a/z.txt", "b.txt"]
    assert [document.source for document in read(tmp_path, params_of(pattern="*.txt"))] == ["b.txt"]


def test_a_pattern_without_a_match_is_reported_with_the_existing_files(tmp_path, params_of) -> None:
    (tmp_path / "notes.txt").write_text("text")
    with pytest.raises(DataError, match="no file matches") as caught:
        read(tmp_path, params_of(pattern="*.jsonl"))
    assert "notes.txt" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("wiki_00", '<doc id="1" url="u" title="A">\nA\n\nBody\n', "wiki_00, line 1: the <doc>"),
        *(
            ("x.jsonl", f'{{"text": "fine"}}\n\n{line}\n', rf"(?s)x\.jsonl, line 3: not a JSON object.*{told}")
            for line, told in [
                ("[1, 2]", "list"),
                ('"text"', "str"),
                ("3", "int"),
                ("{broken", "{bro"),
                ("null", "null"),
            ]
        ),
        ("x.jsonl", '{"text": "fine"}\n{"text": 12}\n', "line 2: field `text` is not text"),
        ("x.csv", 'kind,text\na,"never closed\nb,x\n', "not CSV"),
        ("x.csv", "kind,text\na,one,two\n", "line 2: 3 columns, but the header has 2"),
        ("x.csv", 'kind,text\na,"quoted" then not\n', "line 2: not CSV"),
        ("x.csv", "id;text\n", "separated by a semicolon"),
        ("x.csv", "id\ttext\n", "separated by a tab"),
        ("x.tsv", "id,text\n", "separated by a comma"),
    ],
)
def test_what_is_not_of_the_format_is_named_with_its_line(
    tmp_path, params_of, name: str, content: str, message: str
) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(DataError, match=message) as caught:
        read(tmp_path / name, params_of())
    assert "separated" not in message or "text_field" not in caught.value.do


def test_json_that_only_lenient_readers_accept_is_accepted(tmp_path, params_of) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text('{"text": "half a pair \\ud83d", "score": NaN}\n')
    (text,) = texts(path, params_of())
    assert clean(text, decode_entities=True) == "half a pair ?"


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


def test_a_number_in_place_of_a_text_is_set_aside_in_parquet_too(tmp_path, params_of) -> None:
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({"text": [1, 2]}), path)
    bad = [document.bad.place for document in read(path, params_of(), quarantines=True)]
    assert bad == [f"{path}, row 1", f"{path}, row 2"]


@pytest.mark.parametrize("content", [b"", b"\n", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("name", ["x.csv", "x.tsv", "x.jsonl", "x.txt", "x"])
def test_an_empty_file_yields_no_documents(tmp_path, params_of, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    assert texts(tmp_path / name, params_of()) == []


def test_a_damaged_parquet_file_is_named(tmp_path, params_of) -> None:
    path = tmp_path / "x.parquet"
    write_parquet(path)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(DataError, match=r"x\.parquet: not a complete Parquet"):
        read(path, params_of())


def test_an_endless_paragraph_is_refused_before_it_fills_the_memory(tmp_path, params_of, monkeypatch) -> None:
    monkeypatch.setattr("clozeline.corpus.cleaning.line_formats._MAX_DOCUMENT_CHARACTERS", 100)
    path = tmp_path / "x.txt"
    path.write_text("a sentence on its line\n" * 10)
    with pytest.raises(DataError, match=r"x\.txt: a paragraph is longer than 100 characters") as caught:
        read(path, params_of())
    assert "`source.one_document_per` to line" in caught.value.do
    assert len(texts(path, params_of(one_document_per="line"))) == 10
