import json
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from clozeline.corpus.cleaning.documents import Document
from clozeline.corpus.cleaning.portions import open_snapshot, opened
from clozeline.system.errors import DataError
from tests.make.texts import take_snapshot


@pytest.fixture
def read(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., list[Document]]:
    """Take a snapshot, and read it."""

    def through_snapshot(params) -> list[Document]:
        raw = tmp_path_factory.mktemp("raw") / "raw"
        take_snapshot(params.source, Path("unread"), raw)
        text = open_snapshot(raw, params.source)
        return [document for unit in opened(text.files, text.reading).units for document in unit.documents()]

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


def test_a_class_id_becomes_its_name_and_a_missing_id_none(tmp_path: Path, params_of, read) -> None:
    table = pa.table({"text": ["a", "b", "c"], "label": [1, 0, -1]})
    features = {
        "info": {
            "features": {
                "text": {"dtype": "string", "_type": "Value"},
                "label": {"names": ["bad", "good"], "_type": "ClassLabel"},
            }
        }
    }
    pq.write_table(table.replace_schema_metadata({"huggingface": json.dumps(features)}), tmp_path / "train.parquet")
    params = params_of(kind="hub", dataset=str(tmp_path), label_field="label")
    assert [document.source for document in read(params)] == ["good", "bad", ""]


def test_a_missing_field_is_named_with_the_existing_ones(dataset: Path, params_of, read) -> None:
    with pytest.raises(DataError, match="train row 0: no field `body`") as caught:
        read(params_of(kind="hub", dataset=str(dataset), text_field="body"))
    assert "text, label" in str(caught.value)


def test_a_missing_subset_is_named_with_the_existing_ones(dataset: Path, params_of, read) -> None:
    with pytest.raises(DataError, match="cannot read") as caught:
        read(params_of(kind="hub", dataset=str(dataset), subset="nope"))
    assert "default" in str(caught.value)


def test_a_folder_without_data_is_refused(tmp_path: Path, params_of, read) -> None:
    with pytest.raises(DataError, match="cannot read"):
        read(params_of(kind="hub", dataset=str(tmp_path / "nothing")))
