"""Claim: the clean text is read by the names of its columns, as a stream; a file without them is refused by name."""

import errno
import random
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from clozeline.records.clean_text import DOC_ID, SCHEMA, SOURCE, TEXT, CorpusMetrics, columns_of, num_rows, texts_of
from clozeline.system.errors import ArtifactError
from tests.make.texts import corpus_metrics


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "train.parquet"


def read(path: Path) -> list[str]:
    return [text for batch in texts_of(path) for text in batch]


def test_columns_come_in_the_requested_order_and_rows_in_file_order(path: Path) -> None:
    """Stages that only read the clean text depend on its bytes: renaming a column of the schema changes those."""
    assert pa.schema([(name, pa.string()) for name in ("doc_id", "text", "source", "title")]) == SCHEMA
    number_R = list(range(3000))
    table = pa.table({"source": map(str, number_R), "n": number_R, "text": ["x"] * 3000})
    pq.write_table(table, path, row_group_size=1300)
    batches = list(columns_of(path, "n", SOURCE))
    assert [number for numbers, _ in batches for number in numbers.to_pylist()] == number_R
    assert [int(source) for _, sources in batches for source in sources.to_pylist()] == number_R
    assert len(read(path)) == num_rows(path) == 3000


def test_every_arrow_text_type_is_read_as_string(path: Path) -> None:
    for kind in (pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())):
        pq.write_table(pa.table({"text": pa.array(["one", None, "", "two"]).cast(kind)}), path)
        assert read(path) == ["one", None, "", "two"]
        assert [text.type for (text,) in columns_of(path, TEXT)] == [pa.string()]


def test_a_missing_or_non_text_column_is_refused_with_what_there_is(path: Path) -> None:
    for column, values, told in (
        ("text", pa.array([1, 2]), "text (int6"),
        ("text", pa.array([b"one"]), "text (bina"),
        ("body", pa.array(["one"]), "body"),
    ):
        pq.write_table(pa.table({column: values}), path)
        with pytest.raises(ArtifactError) as refused:
            read(path) if column == TEXT else num_rows(path, DOC_ID, TEXT)
        assert str(path) in refused.value.problem
        assert told in str(refused.value)
        assert column == TEXT or "columns doc_id, text" in refused.value.problem


@pytest.mark.parametrize("damage", [b"\0" * 8, b"\xff" * 8])
@pytest.mark.parametrize("compression", ["zstd", "none"])
def test_a_missing_a_corrupt_and_a_non_parquet_file_are_refused_by_name(
    path: Path, damage: bytes, compression: str
) -> None:
    """The end of the corrupt file, which names the columns, is intact."""
    for ask in (read, num_rows):
        with pytest.raises(ArtifactError, match=str(path)):
            ask(path)
        path.write_text("text\none\n", encoding="utf-8")
    pq.write_table(pa.table({"text": [f"text {place * 7919}" for place in range(500)]}), path, compression=compression)
    content = bytearray(path.read_bytes())
    for place in range(8, 2000, 64):
        content[place : place + 8] = damage
    path.write_bytes(content)
    with pytest.raises(ArtifactError, match=str(path)):
        read(path)


def test_a_disk_error_is_not_reported_as_a_damaged_file(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(path: Path) -> None:
        raise OSError(errno.EIO, "Input/output error", str(path))

    monkeypatch.setattr(pq, "ParquetFile", fails)
    with pytest.raises(OSError, match="Input/output"):
        read(path)


def test_memory_does_not_grow_with_the_length_of_the_file(path: Path) -> None:
    draw = random.Random(1)
    texts = [draw.randbytes(1_000).hex() for _ in range(4_000)]
    pq.write_table(pa.table({"text": texts}), path, row_group_size=100, compression="zstd")
    found, held_bytes = [], []
    before = pa.total_allocated_bytes()
    for batch in texts_of(path):
        found += batch
        held_bytes.append(pa.total_allocated_bytes() - before)
    assert found == texts
    assert max(held_bytes) < 2_000_000 < path.stat().st_size


def test_counts_that_do_not_add_up_are_refused(tmp_path: Path) -> None:
    whole = corpus_metrics(train=80, validation=10, too_short=9, near_duplicate=1, empty=0)
    assert whole.summary().startswith("100 texts in = 90 kept + 9 too short, 1 near duplicate\n")
    whole.write(tmp_path / "whole.json")
    assert CorpusMetrics.read(tmp_path / "whole.json") == whole
    for lost in ({"kept": 89}, {"documents_in": 101}, {"documents_read": 99}, {"dropped": {"too_short": 9}}):
        whole.model_copy(update=lost).write(tmp_path / "lost.json")
        with pytest.raises(ArtifactError, match="cannot be used"):
            CorpusMetrics.read(tmp_path / "lost.json")
