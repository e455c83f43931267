"""A sample is a function of the texts in the file, labels too."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from clozeline.exporting.exams import Sample, read_sample
from clozeline.system.errors import ArtifactError, DataError


def write_texts(path: Path, texts: list[str]) -> Path:
    pq.write_table(pa.table({"text": pa.array(texts, pa.string())}), path)
    return path


def test_the_sample_is_the_same_for_any_order_of_the_rows(tmp_path: Path) -> None:
    texts = [f"text {number}" for number in range(50)]
    forward = read_sample(write_texts(tmp_path / "a.parquet", texts), 10)
    backward = read_sample(write_texts(tmp_path / "b.parquet", texts[::-1] + texts[:5]), 10)
    assert forward == backward
    assert len(set(forward.texts)) == 10


def test_all_texts_are_taken_if_there_are_too_few(tmp_path: Path) -> None:
    path = write_texts(tmp_path / "a.parquet", ["one", "two", "", "two"])
    assert sorted(read_sample(path, 10).texts) == ["one", "two"]


@pytest.mark.parametrize("texts", [[], [""], [None]])
def test_a_file_without_a_text_is_refused_by_name(tmp_path: Path, texts: list[str]) -> None:
    path = write_texts(tmp_path / "texts.parquet", texts)
    with pytest.raises(DataError, match="holds no text") as refused:
        read_sample(path, 10)
    assert str(path) in str(refused.value)


def test_texts_keep_their_labels_and_a_text_with_two_labels_has_none(tmp_path: Path) -> None:
    path = tmp_path / "texts.parquet"
    rows = {"text": ["one", "two", "two", "three", "one"], "source": ["a", "b", "c", None, "a"]}
    pq.write_table(pa.table(rows), path)
    sample = read_sample(path, 10, "source")
    assert dict(zip(sample.texts, sample.labels, strict=True)) == {"one": "a", "two": None, "three": None}
    assert set(read_sample(path, 10).labels) == {None}


def test_a_missing_label_column_is_named(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="topic"):
        read_sample(write_texts(tmp_path / "texts.parquet", ["one"]), 10, "topic")


def test_the_two_parts_of_a_sample_share_no_text_and_the_first_stays_the_same(tmp_path: Path) -> None:
    path = write_texts(tmp_path / "texts.parquet", [f"text {number}" for number in range(50)])
    first, second = read_sample(path, 12).parted(8, 4)
    assert first == read_sample(path, 8)
    assert len(second.texts) == 4
    assert not set(first.texts) & set(second.texts)


@pytest.mark.parametrize(("num_texts", "num_first", "num_second"), [(40, 32, 8), (30, 24, 6), (5, 4, 1), (2, 1, 1)])
def test_the_two_parts_share_no_text_in_a_small_sample(num_texts: int, num_first: int, num_second: int) -> None:
    texts = [str(number) for number in range(num_texts)]
    first, second = Sample(texts, [None] * num_texts).parted(32, 8)
    assert [*first.texts, *second.texts] == texts
    assert (len(first.texts), len(second.texts)) == (num_first, num_second)
    assert (len(first.labels), len(second.labels)) == (num_first, num_second)


def test_a_single_text_is_in_both_parts() -> None:
    assert [part.texts for part in Sample(["alone"], [None]).parted(32, 8)] == [["alone"], ["alone"]]
