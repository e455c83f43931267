"""Claim: raw text that is read in portions, by any number of tasks, is the text of the files, with its places."""

import bz2
import gzip
import json
import random
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from clozeline.cluster.ledger import Ledger
from clozeline.corpus.cleaning import portions
from clozeline.corpus.cleaning.documents import Document, DropReason, FileReading, RawFile, RawText
from clozeline.corpus.cleaning.portions import ReadText, cut_batches, open_snapshot, opened, portions_of, units_of
from clozeline.corpus.cleaning.preparation import PreparationSettings, prepared
from clozeline.corpus.sources import python_docs
from clozeline.corpus.sources.python_docs import documented_modules
from clozeline.params.text import SourceParams
from clozeline.records.reading.streams import read_blocks
from clozeline.records.words.shingles import Banding
from clozeline.system.content import sha256_of
from clozeline.system.errors import ArtifactError, DataError
from clozeline.system.workers import Workers
from tests.corpus.cleaning.test_wikipedia import HEAD, TAIL, page
from tests.make.texts import take_snapshot

READING = FileReading("files", "text", None, "paragraph")
LINES = [json.dumps({"text": f"{number % 17 * 'é'} text {number}"}) + "\n" * (1 + number % 3) for number in range(60)]
SETTINGS = PreparationSettings(1, 500, decode_entities=True, banding=Banding.finding(0.5))


@pytest.fixture(autouse=True)
def small_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clozeline.corpus.cleaning.portions._PORTION_BYTES", 300)
    monkeypatch.setattr("clozeline.corpus.cleaning.portions._BATCH_BYTES", 100)
    monkeypatch.setattr("clozeline.records.reading.streams._BLOCK_BYTES", 40)


def raw_file(path: Path, content: bytes, *, quarantines: bool = False) -> RawFile:
    path.write_bytes(content)
    return RawFile(path, path.name, path.name, quarantines, sha256_of(path))


def documents_in_portions(files: list[RawFile], work: Path, reading: FileReading = READING) -> list[Document]:
    ledger = Ledger(work, "code", Workers(None, 1))
    batches = cut_batches(files, reading, ledger, ReadText())
    return [document for batch in batches for unit in units_of(batch) for document in unit.documents()]


@pytest.mark.parametrize("seed", range(20))
def test_ranges_of_lines_hold_each_line_once_with_its_number(tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    content = b"".join(b"x" * draw.choice([0, 0, 1, 5, 30]) + b"\n" for _ in range(40)) + b"y" * draw.randrange(3)
    (tmp_path / "lines").write_bytes(content)
    cuts = [0, *sorted(draw.sample(range(1, len(content)), 6)), len(content)]
    found, lines_before = b"", 0
    for start, end in pairwise(cuts):
        blocks = list(read_blocks(tmp_path / "lines", start=start, end=end))
        for block in blocks:
            assert content[block.start.byte :].startswith(block.content)
            later = block.later(lines_before - 1) if start else block
            assert later.first_line == content[: block.start.byte].count(b"\n") + 1
        found += b"".join(block.content for block in blocks)
        lines_before = found.count(b"\n")
    assert found == content


def test_portions_hold_the_documents_of_the_files_in_their_order(tmp_path: Path) -> None:
    files = [
        raw_file(tmp_path / "a.jsonl", "".join(LINES).encode()),
        raw_file(tmp_path / "b.txt", b"one\n\ntwo\nthree\n\n" * 30),
        raw_file(tmp_path / "c.jsonl.gz", gzip.compress("".join(LINES[:30]).encode())),
        *(raw_file(tmp_path / f"{number}.csv", b"text\nsome\n") for number in range(9)),
        raw_file(tmp_path / "none.jsonl", b""),
    ]
    portions = portions_of(files, READING)
    assert len([some for some in portions if some[0].name == "a.jsonl"]) > 5
    assert max(map(len, portions)) > 5, "small files share a portion"
    whole = [document for unit in opened(files, READING) for document in unit.documents()]
    assert documents_in_portions(files, tmp_path / "work") == whole


def test_bad_records_of_later_portions_have_their_line_in_the_file(tmp_path: Path) -> None:
    lines = [line.strip() for line in LINES]
    bad = {7: "[1]", 31: '{"text": 1}', 32: '{"body": ""}', 58: "{"}
    for line, content in bad.items():
        lines[line - 1] = content
    content = "\n".join(lines).encode()
    files = [
        raw_file(tmp_path / "a.jsonl", b"{}\n[]\n", quarantines=True),
        raw_file(tmp_path / "b.jsonl", content, quarantines=True),
        raw_file(tmp_path / "c.jsonl", b'{"text": ""}\n{}\n', quarantines=True),
    ]
    found = documents_in_portions(files, tmp_path / "work")
    places = [document.bad.place.removeprefix(f"{tmp_path}/") for document in found if document.bad]
    of_b = [f"b.jsonl, line {line}" for line in bad]
    assert places == ["a.jsonl, line 1", "a.jsonl, line 2", *of_b, "c.jsonl, line 2"]


def test_row_groups_of_parquet_are_read_each_once_with_their_rows(tmp_path: Path) -> None:
    texts = [None if number in (3, 71) else f"text {number}" for number in range(90)]
    table = pa.table({"other": list(range(90)), "text": [7] * 90, "label": texts})
    pq.write_table(table, tmp_path / "bad", row_group_size=7)
    pq.write_table(table.rename_columns(["other", "number", "text"]), tmp_path / "good", row_group_size=7)
    bad = raw_file(tmp_path / "bad.parquet", (tmp_path / "bad").read_bytes(), quarantines=True)
    good = raw_file(tmp_path / "good.parquet", (tmp_path / "good").read_bytes())
    assert len(portions_of([good, bad], READING)) > 10
    found = documents_in_portions([good, bad], tmp_path / "work")
    assert [document.text for document in found[:90]] == [text or "" for text in texts]
    places = [document.bad.place for document in found if document.bad]
    assert places == [f"{bad.path}, row {row}" for row in range(1, 91)]


def dump_of(num_pages: int) -> bytes:
    return (
        HEAD + "".join(page(f"P{n}", f"'''page''' {n} &lt;page> [[Datei:x]]") for n in range(num_pages)) + TAIL
    ).encode()


def in_streams(content: bytes, num_bytes: int) -> bytes:
    return b"".join(bz2.compress(content[at : at + num_bytes]) for at in range(0, len(content), num_bytes))


@pytest.mark.parametrize("portion_bytes", [97, 150, 401])
@pytest.mark.parametrize("stream_bytes", [None, 33, 700, 100_000])
def test_ranges_of_a_dump_hold_each_page_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, portion_bytes: int, stream_bytes: int | None
) -> None:
    """Whatever the streams of a bz2 file are: those of a parallel compressor end within a page, or within its tag."""
    monkeypatch.setattr("clozeline.corpus.cleaning.portions._PORTION_BYTES", portion_bytes)
    content = dump_of(25)
    file = raw_file(tmp_path / "d.xml", in_streams(content, stream_bytes) if stream_bytes else content)
    reading = replace(READING, kind="wikipedia-xml")
    assert len(portions_of([file], reading)) > 1
    found = documents_in_portions([file], tmp_path / "work", reading)
    assert found == [Document(f"page {number} <page> ", "d.xml", f"P{number}") for number in range(25)]


@pytest.mark.parametrize("stream_bytes", [None, 700])
def test_a_dump_that_is_cut_off_is_named_by_its_last_range(tmp_path: Path, stream_bytes: int | None) -> None:
    content = dump_of(25)
    packed = in_streams(content, stream_bytes) if stream_bytes else content
    file = raw_file(tmp_path / "d.xml", packed[:-60])
    with pytest.raises(DataError, match=r"d\.xml: "):
        documents_in_portions([file], tmp_path / "work", replace(READING, kind="wikipedia-xml"))


def test_a_plain_file_of_json_lines_is_not_copied_and_not_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = "".join(LINES).encode()
    files = (raw_file(tmp_path / "a.jsonl", content), raw_file(tmp_path / "b.jsonl.gz", gzip.compress(content)))
    ledger, read = Ledger(tmp_path / "work", "code", Workers(None, 1)), ReadText()
    first = list(prepared(RawText(files, READING, 0), SETTINGS, ledger, read))
    assert sum(record.counts.num_read for record in first) == 2 * len(LINES)
    pickles = list((tmp_path / "work").glob("*/*/units-*.pickle"))
    assert {path.parent.name for path in pickles} == read.portions, "copies are removed when they are prepared"
    assert not any(b" text 1" in path.read_bytes() for path in pickles)
    names: list[str] = []
    monkeypatch.setattr(
        "clozeline.corpus.cleaning.portions.opened",
        lambda some, reading, shapes: names.extend(file.name for file in some) or opened(some, reading, shapes),
    )
    again = list(prepared(RawText(files, READING, 0), SETTINGS, ledger, ReadText()))
    assert [record.key for record in again] == [record.key for record in first]
    assert set(names) == {"b.jsonl.gz"}


@pytest.fixture
def read(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., list[Document]]:
    """Take a snapshot, and read it."""

    def through_snapshot(params) -> list[Document]:
        raw = tmp_path_factory.mktemp("raw") / "raw"
        take_snapshot(params.source, Path("unread"), raw)
        text = open_snapshot(raw, params.source)
        return [document for unit in opened(text.files, text.reading) for document in unit.documents()]

    return through_snapshot


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    """A folder in the shape of a dataset on the hub, with a training and a test split."""
    for split in ("train", "test"):
        lines = [json.dumps({"text": f"{split} {number}", "label": number % 2}) for number in range(3)]
        (tmp_path / f"{split}.jsonl").write_text("\n".join(lines))
    return tmp_path


def test_only_the_training_split_is_read(dataset: Path, params_of, read) -> None:
    params = params_of(kind="hub", dataset=str(dataset), label_field="label")
    assert read(params) == [Document(f"train {number}", str(number % 2)) for number in range(3)]


def test_a_folder_without_data_is_refused(tmp_path: Path, params_of, read) -> None:
    with pytest.raises(DataError, match="cannot read"):
        read(params_of(kind="hub", dataset=str(tmp_path / "nothing")))


def documents(raw: Path, params: SourceParams) -> list[Document]:
    text = portions.open_snapshot(raw, params)
    return [document for unit in opened(text.files, text.reading) for document in unit.documents()]


def test_a_file_is_read_from_its_snapshot_with_its_name_as_label(tmp_path: Path, params_of) -> None:
    (tmp_path / "notes.txt").write_text("a note")
    take_snapshot(params_of().source, tmp_path / "notes.txt", tmp_path / "raw")
    (tmp_path / "notes.txt").unlink()
    assert documents(tmp_path / "raw", params_of().source) == [Document("a note", "notes.txt")]


def test_docstrings_keep_library_title_and_entities(tmp_path: Path, params_of, monkeypatch: pytest.MonkeyPatch) -> None:
    modules = [module for module in documented_modules(Path("/dev/null")) if module.name.split(".")[0] == "json"]
    broken = tmp_path / "broken.py"
    broken.write_text("print 'Python 2'")
    modules.append(replace(modules[0], path=broken, name="json.broken"))
    monkeypatch.setattr(python_docs, "documented_modules", lambda lock: modules)
    params = params_of(kind="python-docs", path="lock.txt").source
    (tmp_path / "lock.txt").touch()
    take_snapshot(params, tmp_path / "lock.txt", tmp_path / "raw")
    text = portions.open_snapshot(tmp_path / "raw", params)
    found = [document for unit in opened(text.files, text.reading) for document in unit.documents()]
    assert not text.decode_entities
    assert text.raw_bytes == sum(module.size_bytes for module in modules)
    assert [document.title for document in found[:3]] == ["json", "json.dump", "json.dumps"]
    assert {document.source for document in found} == {"python"}
    assert found[-1] == Document("", "python", "json.broken", DropReason.UNREADABLE)


def test_a_snapshot_of_another_source_is_refused(tmp_path: Path, params_of) -> None:
    (tmp_path / "notes.txt").write_text("a note")
    take_snapshot(params_of(path="theirs").source, tmp_path / "notes.txt", tmp_path / "raw")
    with pytest.raises(ArtifactError, match="snapshot of another source") as caught:
        portions.open_snapshot(tmp_path / "raw", params_of(path="ours").source)
    assert "theirs" in str(caught.value)
    assert "ours" in str(caught.value)


@pytest.mark.parametrize("fault", ["no manifest", "damaged manifest", "missing file", "cut file"])
def test_an_incomplete_snapshot_is_refused(tmp_path: Path, params_of, fault: str) -> None:
    (tmp_path / "notes.txt").write_text("a note")
    raw = tmp_path / "raw"
    (file,) = take_snapshot(params_of().source, tmp_path / "notes.txt", raw).files
    damage = {
        "no manifest": lambda: (raw / "manifest.json").unlink(),
        "damaged manifest": lambda: (raw / "manifest.json").write_text("{"),
        "missing file": lambda: (raw / file.object_name).unlink(),
        "cut file": lambda: (raw / file.object_name).write_text("a"),
    }
    damage[fault]()
    with pytest.raises(ArtifactError, match="dvc repro -f snapshot"):
        portions.open_snapshot(raw, params_of().source)
