"""Claim: raw text that is read in portions, by any number of tasks, is the text of the files, with its places."""

import bz2
import gzip
import json
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from clozeline.cluster.ledger import Ledger
from clozeline.corpus.cleaning import portions
from clozeline.corpus.cleaning.documents import Document, DropReason, FileReading, RawFile, RawText
from clozeline.corpus.cleaning.portions import ReadText, opened, portions_of
from clozeline.system.errors import ArtifactError, DataError
from clozeline.system.files import sha256_of
from clozeline.system.workers import Workers
from tests.corpus.cleaning.test_line_formats import HEAD, TAIL, page
from tests.make.texts import documents_in, take_snapshot

READING = FileReading("files", "text", None, "paragraph")
DUMPS = replace(READING, kind="wikipedia-xml")
LINES = [json.dumps({"text": f"{number % 17 * 'é'} text {number}"}) + "\n" * (1 + number % 3) for number in range(60)]
ALL_LINES = "".join(LINES).encode()


@pytest.fixture(autouse=True)
def _small_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(portions, "_PORTION_BYTES", 300)
    monkeypatch.setattr(portions, "_BATCH_BYTES", 100)
    monkeypatch.setattr("clozeline.records.reading.streams._BLOCK_BYTES", 40)


def raw_file(path: Path, content: bytes, *, quarantines: bool = False) -> RawFile:
    path.write_bytes(content)
    return RawFile(path, path.name, path.name, quarantines, sha256_of(path))


def documents_in_portions(files: list[RawFile], reading: FileReading = READING) -> list[Document]:
    ledger = Ledger(files[0].path.parent / "work", "code", Workers(None, 1))
    batches = portions.cut_batches(files, reading, ledger, ReadText())
    return [document for batch in batches for unit in portions.units_of(batch) for document in unit.documents()]


def test_portions_hold_the_documents_of_the_files_in_their_order(tmp_path: Path) -> None:
    files = [
        raw_file(tmp_path / "a.jsonl", ALL_LINES),
        raw_file(tmp_path / "b.txt", b"one\n\ntwo\nthree\n\n" * 30),
        raw_file(tmp_path / "c.jsonl.gz", gzip.compress(ALL_LINES)),
        *(raw_file(tmp_path / f"{number}.csv", b"text\nsome\n") for number in range(9)),
        raw_file(tmp_path / "none.jsonl", b""),
    ]
    found = portions_of(files, READING)
    assert len([some for some in found if some[0].name == "a.jsonl"]) > 5
    assert max(map(len, found)) > 5, "small files share a portion"
    assert documents_in_portions(files) == [it for unit in opened(files, READING) for it in unit.documents()]


def test_bad_records_of_later_portions_have_their_line_in_the_file(tmp_path: Path) -> None:
    lines = [line.strip() for line in LINES]
    bad = {7: "[1]", 31: '{"text": 1}', 32: '{"body": ""}', 58: "{"}
    for line, content in bad.items():
        lines[line - 1] = content
    contents = {"a": b"{}\n[]\n", "b": "\n".join(lines).encode(), "c": b'{"text": ""}\n{}\n'}
    files = [raw_file(tmp_path / f"{name}.jsonl", content, quarantines=True) for name, content in contents.items()]
    places = [document.bad.place for document in documents_in_portions(files) if document.bad]
    expected = [("a", 1), ("a", 2), *(("b", line) for line in bad), ("c", 2)]
    assert places == [f"{tmp_path}/{name}.jsonl, line {line}" for name, line in expected]


def test_row_groups_of_parquet_are_read_each_once_with_their_rows(tmp_path: Path) -> None:
    files, texts = [], [None if number in (3, 71) else f"text {number}" for number in range(90)]
    for name, column in (("good", texts), ("bad", [7] * 90)):
        path = tmp_path / f"{name}.parquet"
        pq.write_table(pa.table({"other": list(range(90)), "text": column}), path, row_group_size=7)
        files.append(raw_file(path, path.read_bytes(), quarantines=name == "bad"))
    assert len(portions_of(files, READING)) > 10
    found = documents_in_portions(files)
    assert [document.text for document in found[:90]] == [text or "" for text in texts]
    places = [document.bad.place for document in found if document.bad]
    assert places == [f"{files[1].path}, row {row}" for row in range(1, 91)]


@pytest.mark.parametrize("portion_bytes", [97, 401])
@pytest.mark.parametrize("stream_bytes", [None, 33, 700])
def test_ranges_of_a_dump_hold_each_page_once(tmp_path, monkeypatch, portion_bytes, stream_bytes: int | None) -> None:
    """Whatever the streams of a bz2 file are: those of a parallel compressor end within a page, or within its tag."""
    monkeypatch.setattr(portions, "_PORTION_BYTES", portion_bytes)
    pages = (page(f"P{number}", f"'''page''' {number} &lt;page> [[Datei:x]]") for number in range(25))
    content = (HEAD + "".join(pages) + TAIL).encode()
    if stream_bytes:
        starts = range(0, len(content), stream_bytes)
        content = b"".join(bz2.compress(content[start : start + stream_bytes]) for start in starts)
    file = raw_file(tmp_path / "d.xml", content)
    assert len(portions_of([file], DUMPS)) > 1
    expected = [Document(f"page {number} <page> ", "d.xml", f"P{number}") for number in range(25)]
    assert documents_in_portions([file], DUMPS) == expected
    with pytest.raises(DataError, match=r"cut\.xml"):
        documents_in_portions([raw_file(tmp_path / "cut.xml", content[:-60])], DUMPS)


def test_only_the_training_split_of_a_dataset_is_read(tmp_path: Path, params_of) -> None:
    for split in ("train", "test"):
        lines = [json.dumps({"text": f"{split} {number}", "label": number % 2}) for number in range(3)]
        (tmp_path / f"{split}.jsonl").write_text("\n".join(lines))
    params = params_of(kind="hub", dataset=str(tmp_path), label_field="label").source
    take_snapshot(params, Path("unread"), tmp_path / "raw")
    expected = [Document(f"train {number}", str(number % 2)) for number in range(3)]
    assert documents_in(tmp_path / "raw", params) == expected


DAMAGES = {
    "no manifest": lambda raw, file: (raw / "manifest.json").unlink(),
    "damaged manifest": lambda raw, file: (raw / "manifest.json").write_text("{"),
    "missing file": lambda raw, file: (raw / file.object_name).unlink(),
    "cut file": lambda raw, file: (raw / file.object_name).write_text("a"),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_snapshot_is_read_with_the_name_of_its_file_as_label_or_refused(tmp_path: Path, params_of, damage) -> None:
    params, notes, raw = params_of(path="theirs").source, tmp_path / "notes.txt", tmp_path / "raw"
    notes.write_text("a note")
    (file,) = take_snapshot(params, notes, raw).files
    notes.unlink()
    assert documents_in(raw, params) == [Document("a note", "notes.txt")]
    with pytest.raises(ArtifactError, match=r"(?s)theirs.*ours|ours.*theirs"):
        documents_in(raw, params_of(path="ours").source)
    damage(raw, file)
    with pytest.raises(ArtifactError, match="dvc repro -f snapshot"):
        documents_in(raw, params)


def test_docstrings_keep_entities_and_unreadable_modules_their_reason(tmp_path: Path) -> None:
    whole = {"text": "a &lt; b", "source": "python", "title": "json.dump"}
    broken = {"text": "", "source": "python", "title": "json.broken", "unreadable": True}
    file = raw_file(tmp_path / "1.jsonl", f"{json.dumps(whole)}\n{json.dumps(broken)}\n".encode())
    text = RawText((file,), replace(READING, kind="python-docs"), 0)
    assert not text.decode_entities
    assert [it for unit in opened(text.files, text.reading) for it in unit.documents()] == [
        Document("a &lt; b", "python", "json.dump"),
        Document("", "python", "json.broken", DropReason.UNREADABLE),
    ]
