"""Claim: the same records are read from any kind of file, and dirt is named with its line."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from clozeline.errors import DataError
from clozeline.tasks.records import Record, lines_of, read_records


class Labelled(NamedTuple):
    text: str
    label: str


RECORDS = [
    Labelled('a "quoted", text\nof two lines', "x"),
    Labelled("größe 東京", "y"),
    Labelled("no label", ""),
    Labelled("", "x"),
]


def as_parquet(path: Path, records: Sequence[Labelled]) -> None:
    texts, labels = ([record.text or None for record in records], [record.label or None for record in records])
    pq.write_table(pa.table({"body": texts, "topic": labels, "other": labels}), path)


def as_json_lines(path: Path, records: Sequence[Labelled]) -> None:
    lines = [json.dumps({"body": record.text, "topic": record.label or None}) for record in records]
    path.write_text("\n\n".join(lines) + "\n", encoding="utf-8")


def as_separated(delimiter: str) -> Callable[[Path, Sequence[Labelled]], None]:
    def write(path: Path, records: Sequence[Labelled]) -> None:
        quoted = [[part.replace('"', '""') for part in (record.label, record.text)] for record in records]
        rows = ["topic" + delimiter + "body", *(f'"{label}"{delimiter}"{text}"' for label, text in quoted)]
        path.write_text("\r\n".join(rows) + "\r\n", encoding="utf-8-sig", newline="")

    return write


WRITERS = {
    ".parquet": as_parquet,
    ".jsonl": as_json_lines,
    ".ndjson": as_json_lines,
    ".csv": as_separated(","),
    ".tsv": as_separated("\t"),
}


def read(path: Path) -> list[Labelled]:
    records = read_records(path, {"text_field": "body", "label_field": "topic"})
    return [Labelled(record.text("body"), record.category("topic")) for record in records]


@pytest.mark.parametrize("suffix", WRITERS)
def test_every_kind_of_file_gives_the_same_records(tmp_path: Path, suffix: str) -> None:
    WRITERS[suffix](tmp_path / f"data{suffix}", RECORDS)
    assert read(tmp_path / f"data{suffix}") == RECORDS


def test_a_text_that_was_cut_in_the_middle_of_an_emoji_is_read(tmp_path: Path) -> None:
    (tmp_path / "data.jsonl").write_text('{"body": "fine \\ud83d", "topic": "a"}\n')
    assert read(tmp_path / "data.jsonl") == [Labelled("fine ?", "a")]


def test_numbers_and_truth_values_are_labels(tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    path.write_text('{"body": "a", "topic": 0}\n{"body": "b", "topic": true}\n')
    assert [record.label for record in read(path)] == ["0", "True"]


DIRT = {
    "a missing file": ("data.csv", None, "there is no file", "data.csv"),
    "an unknown kind": ("data.doc", b"x", "of a kind that cannot be read", ".doc"),
    "no suffix": ("data", b"x", "of a kind that cannot be read", "no suffix"),
    "a JSON array": ("data.jsonl", b'{"body": "a", "topic": "x"}\n[1]\n', "line 2: not a JSON object", "[1]"),
    "broken JSON": ("data.jsonl", b'{"body": "a", "topic": "x"}\n\n{"body"\n', "line 3: not a JSON object", '{"body"'),
    "a label in a list": ("data.jsonl", b'{"body": "a", "topic": ["x"]}\n', "line 1: field `topic`", "list: ['x']"),
    "a text that is none": ("data.jsonl", b'{"body": 3, "topic": "x"}\n', "line 1: field `body`", "int: 3"),
    "a field by another name": ("data.csv", b"boddy,topic\na,x\n", "no field `body`", "fields: boddy, topic"),
    "a record without it": ("data.jsonl", b'{"body": "a"}\n', "line 1: there is no field `topic`", "fields: body"),
    "a row too long": ("data.csv", b"body,topic\na,x\nb,y,z\n", "line 3: the columns", "3 columns under a header of 2"),
    "semicolons": ("data.csv", b"body;topic\na;x\n", "line 1: the columns stand between", "'body;topic': semicolons"),
    "TABs in a .csv": ("data.csv", b"body\ttopic\na\tx\n", "line 1: the columns stand between", "TABs"),
    "an open quote": ("data.csv", b'body,topic\na,x\n"b,y\n', "line 3: the columns", "unexpected end of data"),
    "an empty file": ("data.csv", b"", "line 1: there is no field `body`", "fields: none"),
    "UTF-16": ("data.csv", "body,topic\na,x\n".encode("utf-16"), "is not UTF-8", "ff fe"),
    "Latin-1": ("data.csv", "body,topic\ngröße,x\n".encode("latin-1"), "is not UTF-8", "f6"),
    "no Parquet": ("data.parquet", b"PAR1 and then nothing", "cannot be read", "Parquet"),
}  # fmt: skip


@pytest.mark.parametrize("name", DIRT)
def test_dirt_is_named_with_file_line_and_what_was_given(tmp_path: Path, name: str) -> None:
    file, content, problem, given = DIRT[name]
    if content is not None:
        (tmp_path / file).write_bytes(content)
    with pytest.raises(DataError) as caught:
        read(tmp_path / file)
    assert str(tmp_path / file) in caught.value.problem
    assert problem in caught.value.problem
    assert given in str(caught.value.given)


def test_a_truncated_parquet_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "data.parquet"
    as_parquet(path, RECORDS * 100)
    path.write_bytes(path.read_bytes()[:-50])
    with pytest.raises(DataError, match=str(path)):
        read(path)


def test_blank_lines_may_hold_separators_and_lines_end_in_any_way(tmp_path: Path) -> None:
    (tmp_path / "data.tsv").write_bytes(b'body\ttopic\r\na\tx\r\n \t\t\t\r\n\r\n"b\r\nc"\ty\n\t\r\n')
    assert read(tmp_path / "data.tsv") == [Labelled("a", "x"), Labelled("b\r\nc", "y"), Labelled("", "")]


def test_the_nearest_field_is_proposed(tmp_path: Path) -> None:
    (tmp_path / "data.csv").write_text("boddy,topic\na,x\n")
    with pytest.raises(DataError) as caught:
        read(tmp_path / "data.csv")
    assert caught.value.do == "set `text_field` to boddy in params.yaml"


def test_a_kind_of_task_may_bring_a_format_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "data.words"
    path.write_text("one two\nthree\n")

    def words(file, fields):
        assert dict(fields) == {"text_field": "body"}
        return (Record({"body": line.split()}, f"{file}, line {n}") for n, line in enumerate(lines_of(file), start=1))

    records = list(read_records(path, {"text_field": "body"}, {".words": words}))
    assert [record.strings("body") for record in records] == [["one", "two"], ["three"]]
    assert records[1].place == f"{path}, line 2"


def test_values_are_read_as_what_they_should_be_or_refused() -> None:
    record = Record({"score": "4.5", "none": "", "words": ["a", "b"], "mixed": ["a", 1], "odd": "four"}, "here")
    assert (record.number("score"), record.number("none")) == (4.5, None)
    assert record.strings("words") == ["a", "b"]
    for refused in (lambda: record.number("odd"), lambda: record.strings("mixed"), lambda: record.strings("score")):
        with pytest.raises(DataError, match="here: field"):
            refused()


def test_a_folder_without_splits_is_told_with_the_files_in_it(tmp_path: Path) -> None:
    (tmp_path / "labels").mkdir()
    (tmp_path / "labels" / "a.csv").write_text("body,topic\n")
    with pytest.raises(DataError, match="is a folder, and no file of it is named") as caught:
        read(tmp_path / "labels")
    assert caught.value.given == "a.csv"
    assert "splits" in caught.value.do
