"""Forgotten texts are cut out of the files of a source, in each format; the rest stays as it is."""

import gzip
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from clozeline.corpus.sources import redaction
from clozeline.corpus.sources.redaction import redact
from clozeline.records.snapshot import Forgotten

TEXT = "Jane Doe lives at 5 Elm Street, in the town of Oz."
FORGOTTEN = Forgotten(key=b"key").with_text(TEXT)
OTHER = "Somebody else lives at 6 Elm Street, in the town of Oz."


def left(tmp_path: Path, name: str, content: bytes) -> bytes | None:
    """Return the file without the forgotten text; None if it does not hold it."""
    file, beside = tmp_path / name, tmp_path / "beside"
    file.write_bytes(content)
    return beside.read_bytes() if redact(file, name, FORGOTTEN, beside) else None


@pytest.mark.parametrize(
    ("name", "before", "after"),
    [
        ("a.txt", f"{OTHER}\n\n{TEXT}\n\nEnd\n", f"{OTHER}\n\n\n\nEnd\n"),
        ("a.txt", "Jane Doe lives\nat 5 Elm Street,\n\nin the town of Oz.\nEnd", "\nEnd"),
        ("a.csv", f'n,text\n1,"{TEXT}"\n2,"{OTHER}"\n3,"So: {TEXT} Yes"\n', f'n,text\n2,"{OTHER}"\n3,So:  Yes\n'),
        ("a.tsv", f"n\ttext\n1\t{TEXT}\n", "n\ttext\n"),
        ("a", f"{json.dumps({'text': TEXT})}\n{json.dumps({'text': OTHER})}\n", f"{json.dumps({'text': OTHER})}\n"),
        ("a.jsonl", '{"t": "Jane Doe\\nlives at 5 \\u0045lm Street in the town of Oz"}\n{"t":1}\n', '{"t":1}\n'),
        ("a.jsonl", f"{json.dumps({'x': {'y': ['So ' + TEXT]}})}\n", '{"x": {"y": ["So "]}}\n'),
    ],
)
def test_the_text_is_cut_out_of_each_format(tmp_path: Path, name: str, before: str, after: str) -> None:
    assert left(tmp_path, name, before.encode()) == after.encode()


@pytest.mark.parametrize("name", ["a.txt", "a.csv", "a.jsonl"])
def test_a_file_without_it_is_not_written(tmp_path: Path, name: str) -> None:
    assert left(tmp_path, name, f"text\n{OTHER}\n".encode()) is None


def test_a_compressed_file_stays_compressed(tmp_path: Path) -> None:
    content = left(tmp_path, "a.txt.gz", gzip.compress(f"{TEXT}\n\nEnd".encode()))
    assert content
    assert gzip.decompress(content) == b"\n\nEnd"


def test_rows_of_parquet_are_left_out(tmp_path: Path) -> None:
    file, beside = tmp_path / "a.parquet", tmp_path / "b"
    pq.write_table(pa.table({"n": [1, 2, None], "text": [TEXT, OTHER, f"So {TEXT}"]}), file)
    assert redact(file, file.name, FORGOTTEN, beside)
    assert pq.read_table(beside).to_pylist() == [{"n": 2, "text": OTHER}, {"n": None, "text": "So "}]


@pytest.mark.parametrize("block", [1, 20, 70, 1000])
def test_a_text_across_two_blocks_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int) -> None:
    monkeypatch.setattr(redaction, "_BLOCK_CHARACTERS", block)
    words = "\n".join(TEXT.split())
    content = left(tmp_path, "a.txt", f"Begin\n{words}\n{OTHER}\n{words}\nEnd\n".encode())
    assert content == f"Begin\n\n{OTHER}\n\nEnd\n".encode()


def test_a_file_that_is_not_text_is_left_to_preprocess(tmp_path: Path) -> None:
    assert left(tmp_path, "a.txt", b"\xff\xfe\x00") is None
    assert left(tmp_path, "a.parquet", b"PAR1") is None
