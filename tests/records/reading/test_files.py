"""Claim: if a field is missing, the message lists the fields present and suggests the one likely meant."""

import bz2
import gzip
import inspect
import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from clozeline.records.reading.files import FORMATS, HubSplit, check_fields, commit_of, format_of, hub_records, nearest
from clozeline.system.errors import DataError, TransientError

KNOBS = {"text_field": "text", "label_field": "label"}
HUB_FIELDS = {"room.text_field": "body", "room.label_field": "topic"}
HUB_KNOBS = "room.dataset and room.split"


def test_a_missing_field_is_reported_with_the_given_fields_and_the_likely_one() -> None:
    with pytest.raises(DataError) as caught:
        check_fields(("body_text", "label"), KNOBS, "a.csv, line 1")
    assert caught.value.problem == "a.csv, line 1: no field `text`"
    assert caught.value.given == "fields: body_text, label"
    assert caught.value.do == "set `text_field` to body_text"
    assert [nearest("text", ("id", other)) for other in ("texts", "Text", "body")] == ["texts", "Text", None]
    both = {"first_field": "sentence1", "second_field": "sentence2"}
    with pytest.raises(DataError) as caught:
        check_fields(("sentence1", "score"), both, "a.csv")
    assert caught.value.do.startswith("set `second_field` to one of these"), "another knob names the likely one"


FIELDS = {"room.text_field": "body", "room.label_field": "topic"}
ROWS = [('a "quoted", text\nof two lines', "x"), ("größe 東京", "y"), ("no label", ""), ("", "x")]
Table = list[tuple[str, str]]


def as_parquet(rows: Table) -> bytes:
    texts, labels = ([value or None for value in column] for column in zip(*rows, strict=True))
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"body": texts, "topic": labels, "other": labels}), sink)
    return sink.getvalue().to_pybytes()


def as_json_lines(rows: Table) -> bytes:
    lines = [json.dumps({"body": text, "topic": label or None}) for text, label in rows]
    return ("\n\n".join(lines) + "\n").encode()


def as_separated(rows: Table, delimiter: str) -> bytes:
    quoted = [[part.replace('"', '""') for part in (label, text)] for text, label in rows]
    lines = ["topic" + delimiter + "body", *(f'"{label}"{delimiter}"{text}"' for label, text in quoted)]
    return ("\r\n".join(lines) + "\r\n").encode("utf-8-sig")


WRITERS: dict[str, Callable[[Table], bytes]] = {
    ".parquet": as_parquet,
    ".pq": as_parquet,
    ".jsonl": as_json_lines,
    ".ndjson": as_json_lines,
    ".csv": partial(as_separated, delimiter=","),
    ".tsv": partial(as_separated, delimiter="\t"),
}


def rows_in(path: Path) -> list[tuple[str, dict[str, Any]]]:
    return list(FORMATS[format_of(path)](path, FIELDS))


def read(path: Path) -> Table:
    return [(values["body"] or "", values["topic"] or "") for _, values in rows_in(path)]


def written(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("suffix", FORMATS)
def test_every_kind_of_file_gives_the_same_rows_also_if_it_is_compressed(tmp_path: Path, suffix: str) -> None:
    content = WRITERS[suffix](ROWS)
    assert read(written(tmp_path / f"data{suffix}", content)) == ROWS
    if suffix in (".jsonl", ".csv", ".tsv"):
        for end, compress in ((".gz", gzip.compress), (".BZ2", bz2.compress), ("", gzip.compress)):
            assert read(written(tmp_path / f"data{suffix}{end}", compress(content))) == ROWS


def test_the_format_is_recognized_by_the_name_without_its_compression() -> None:
    names = ("a.csv", "A.CSV.gz", "a.b.jsonl.zst", "a.gz", "a", "a.gz.csv")
    suffixes = [format_of(Path("folder.tsv") / name) for name in names]
    assert suffixes == [".csv", ".csv", ".jsonl", "", "", ".csv"]


@pytest.mark.parametrize(("suffix", "unit"), [(".jsonl", "line 3"), (".csv", "line 4"), (".parquet", "row 2")])
def test_each_row_comes_with_its_file_and_line(tmp_path: Path, suffix: str, unit: str) -> None:
    """In CSV the first text spans two lines; in JSON Lines an empty line separates the objects. Of a Parquet file, only
    the wanted columns are read."""
    path = written(tmp_path / f"data{suffix}", WRITERS[suffix](ROWS[:2] * 1_000))
    places, rows = zip(*rows_in(path), strict=True)
    assert places[1] == f"{path}, {unit}"
    assert suffix != ".parquet" or places[1_999] == f"{path}, row 2000"
    assert rows == tuple({"body": text, "topic": label} for text, label in ROWS[:2] * 1_000)


DIRT = {
    "a JSON array": ("data.jsonl", b'{"body": "a", "topic": "x"}\n[1]\n', "line 2: not a JSON object", "[1]"),
    "broken JSON": ("data.jsonl", b'{"body": "a", "topic": "x"}\n\n{"body"\n', "line 3: not a JSON object", '{"body"'),
    "deep JSON": ("data.jsonl", b"[" * 200_000, "line 1: not a JSON object", "nested too deeply"),
    "a field by another name": ("data.csv", b"boddy,topic\na,x\n", "no field `body`", "fields: boddy, topic"),
    "a record without it": ("data.jsonl", b'{"body": "a"}\n', "line 1: no field `topic`", "fields: body"),
    "a row too long": ("data.csv", b"body,topic\na,x\nb,y,z\n", "line 3: 3 columns, but the header has 2", "'y', 'z'"),
    "a row too short": ("data.csv", b"body,topic\na\n", "line 2: 1 columns, but the header has 2", "['a']"),
    "semicolons": ("data.csv", b"body;topic\na;x\n", "line 1: separated by a semicolon", "body;topic"),
    "commas in a .tsv": ("data.tsv", b"body,topic\na,x\n", "line 1: separated by a comma", "body,topic"),
    "an open quote": ("data.csv", b'body,topic\na,x\n"b,y\n', "line 3: not CSV", "unexpected end of data"),
    "an empty file": ("data.csv", b"", "line 1: no field `body`", "fields: none"),
    "UTF-16": ("data.csv", "body,topic\na,x\n".encode("utf-16"), "line 1: not UTF-8", "ff fe"),
    "Latin-1": ("data.csv", "body,topic\ngröße,x\n".encode("latin-1"), "line 2, byte 13: not UTF-8", "0xf6"),
    "no Parquet": ("data.parquet", b"PAR1 and then nothing", "Parquet file", "Parquet"),
    "half of a gzip": ("data.csv.gz", gzip.compress(b"body,topic\na,x\n")[:-9], "truncated or damaged", "near byte"),
}  # fmt: skip


@pytest.mark.parametrize("name", DIRT)
def test_invalid_values_are_reported_with_file_line_and_value(tmp_path: Path, name: str) -> None:
    file, content, problem, given = DIRT[name]
    path = written(tmp_path / file, content)
    with pytest.raises(DataError) as caught:
        read(path)
    assert str(path) in caught.value.problem
    assert problem in caught.value.problem
    assert given in str(caught.value)


def test_blank_lines_may_contain_separators_and_every_line_ending_is_accepted(tmp_path: Path) -> None:
    path = written(tmp_path / "data.tsv", b'\r\nbody\ttopic\r\na\tx\r\n \t\t\t\r\n\r\n"b\r\nc"\ty\n\t\r\n')
    assert read(path) == [("a", "x"), ("b\r\nc", "y"), ("", "")]


def test_a_lone_carriage_return_ends_a_line_in_tables(tmp_path: Path) -> None:
    for name, content in (
        ("data.csv", b"body,topic\ra,x\rb,y\r"),
        ("data.jsonl", b'{"body":"a","topic":"x"}\r{"body":"b","topic":"y"}'),
    ):
        assert read(written(tmp_path / name, content)) == [("a", "x"), ("b", "y")]


def test_the_name_of_a_single_column_may_contain_a_separator(tmp_path: Path) -> None:
    path = written(tmp_path / "data.csv", b"body; or text\na\n")
    rows = FORMATS[".csv"](path, {"text_field": "body; or text"})
    assert [values for _, values in rows] == [{"body; or text": "a"}]


def test_a_lone_surrogate_becomes_a_question_mark_in_texts_and_labels(tmp_path: Path) -> None:
    path = written(tmp_path / "data.jsonl", b'{"body": "fine \\ud83d", "topic": "\\ude00", "n": NaN}\n')
    assert read(path) == [("fine ?", "?")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Dataset as the hub stores it: one Parquet file per split, whose features give the names of the labels."""
    folder = tmp_path_factory.mktemp("hub")
    topic = datasets.ClassLabel(names=["no", "yes"])
    body = datasets.Value("string")
    features = datasets.Features({"body": body, "topic": topic, "tags": datasets.Sequence(topic)})
    for split, labels in {"train": [0, 1], "validation": [1, -1]}.items():
        bodies = [f"{split} {label}" for label in labels]
        rows = {"body": bodies, "topic": labels, "tags": [[label, 1] for label in labels]}
        datasets.Dataset.from_dict(rows, features=features).to_parquet(folder / f"{split}-00000-of-00001.parquet")
    return folder


def split_of(dataset: Path | str, split: str = "train", subset: str | None = None) -> HubSplit:
    return HubSplit(str(dataset), subset, split, None, HUB_KNOBS)


def test_rows_come_in_order_with_their_places_and_class_names(folder: Path) -> None:
    """A hidden class is None; a list of classes has their names."""
    places, values = zip(*hub_records(split_of(folder), {**HUB_FIELDS, "room.tags_field": "tags"}), strict=True)
    assert places == (f"{folder}, train row 0", f"{folder}, train row 1")
    told = [(row["body"], row["topic"], row["tags"]) for row in values]
    assert told == [("train 0", "no", ["no", "yes"]), ("train 1", "yes", ["yes", "yes"])]
    hidden = hub_records(split_of(folder, "validation"), HUB_FIELDS)
    assert [row["topic"] for _, row in hidden] == ["yes", None]


def test_a_revision_is_resolved_to_its_commit(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, str | None, str | None]] = []

    class Builder:
        base_path: str | None = f"hf://datasets/someone/something@{'0a' * 20}/data"

    def builder_of(name: str, subset: str | None, *, revision: str | None) -> type[Builder]:
        asked.append((name, subset, revision))
        return Builder

    monkeypatch.setattr(datasets, "load_dataset_builder", builder_of)
    assert commit_of(HubSplit("someone/something", "x", "train", "main", HUB_KNOBS)) == "0a" * 20
    assert asked == [("someone/something", "x", "main")]
    # Without a network, only the source of the installed version can prove that its addresses still look like this.
    source = inspect.getsource(datasets.load.HubDatasetModuleFactory)
    assert 'f"hf://datasets/{self.name}@{self.commit_hash}/' in source
    Builder.base_path = None
    assert commit_of(split_of("someone/something")) is None
    assert commit_of(split_of(folder)) is None, "a folder has none"


def test_what_is_missing_is_named_with_its_knob_and_a_subset_or_split_before_any_row_is_read(folder: Path) -> None:
    with pytest.raises(DataError, match="train row 0: no field `topics`") as caught:
        list(hub_records(split_of(folder), {"room.label_field": "topics"}))
    assert caught.value.do == "set `room.label_field` to topic"
    for split in (split_of(folder, "trian"), split_of(folder, subset="nope")):
        with pytest.raises(DataError, match="cannot read split") as caught:
            hub_records(split, HUB_FIELDS)
        assert split.split in str(caught.value)
        assert (split.subset or "") in str(caught.value)
        assert caught.value.do == f"correct {HUB_KNOBS}"


def unreachable(*_: object, **__: object) -> Any:
    raise ConnectionError("no route")


class Breaking:
    features = None

    def __iter__(self) -> Iterator[dict[str, str]]:
        yield {"body": "a", "topic": "x"}
        unreachable()


def test_a_hub_that_does_not_answer_or_stops_midway_is_a_transient_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets, "load_dataset", unreachable)
    with pytest.raises(TransientError, match="the hub did not answer") as caught:
        hub_records(split_of("someone/something"), HUB_FIELDS)
    assert "room.dataset" in caught.value.do
    monkeypatch.setattr(datasets, "load_dataset", lambda *args, **kwargs: Breaking())
    rows = hub_records(split_of("someone/something"), HUB_FIELDS)
    assert next(rows) == ("someone/something, train row 0", {"body": "a", "topic": "x"})
    with pytest.raises(TransientError, match="the hub did not answer"):
        next(rows)
