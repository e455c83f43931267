"""Claim: records of a task are read from any kind of file, and what a task cannot use is named with its line."""

import gzip
import json
from pathlib import Path

import pytest

from clozeline.params.tasks import FinetuneParams, HubParams
from clozeline.records.reading.streams import lines_of
from clozeline.system.errors import DataError
from clozeline.tasks import files
from clozeline.tasks.files import LabelledRecord, at_commit, hub_commit, read_records
from tests.make.tasks import params_of

FIELDS = {"text_field": "body", "label_field": "topic"}
READERS = {
    ".words": lambda path, fields: (LabelledRecord({"body": line.split()}, f"{path}") for line in lines_of(path))
}
PARAMS: FinetuneParams = params_of("classification")


def read(path: Path) -> list[tuple[str, str]]:
    return [(record.text("body"), record.category("topic")) for record in read_records(path, FIELDS)]


def test_a_table_is_read_by_its_suffix_and_a_label_may_be_a_number_a_boolean_or_missing(tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl.gz"
    rows = "".join(json.dumps({"body": "a", "topic": topic}) + "\n" for topic in ("x", None, 0, True))
    path.write_bytes(gzip.compress((" " * (1 << 19) + "\n" + rows).encode()))  # white space before is accepted
    assert read(path) == [("a", label) for label in ("x", "", "0", "True")]


@pytest.mark.parametrize(
    ("file", "content", "problem", "given"),
    [
        ("data.csv", None, "there is no file", "data.csv"),
        ("data.doc", b"x", "has a format that cannot be read", ".doc"),
        ("data", b"x", "has a format that cannot be read", ".csv"),
        ("data.jsonl", b'{"body": "a", "topic": ["x"]}\n', "line 1: field `topic`", "list: ['x']"),
        ("data.jsonl", b'{"body": 3, "topic": "x"}\n', "line 1: field `body`", "int: 3"),
        *((f"data{suffix}", b"", "is empty", "0 bytes") for suffix in files.TABLES),
        *(("data.csv", content, "is empty", "body, topic") for content in (b"\n \r\n", b"\xef\xbb\xbf\n")),
        ("data.csv.gz", gzip.compress(b""), "is empty", "body, topic"),
        ("labels/a.csv", b"body,topic\n", "labels is a folder, and `splits` names no file in it", "a.csv"),
        ("labels.parquet/a.csv", b"body,topic\n", "is a folder, and `splits` names no file in it", "a.csv"),
    ],
)
def test_what_cannot_be_read_is_reported_with_file_line_and_value(
    file: str, content: bytes | None, problem: str, given: str, tmp_path: Path
) -> None:
    if content is not None:
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_bytes(content)
    asked = tmp_path / Path(file).parts[0]
    with pytest.raises(DataError) as caught:
        read(asked)
    assert str(asked) in caught.value.problem
    assert problem in caught.value.problem
    assert given in str(caught.value)


def test_a_kind_of_task_may_add_its_own_file_format(tmp_path: Path) -> None:
    path = tmp_path / "data.words"
    path.write_text("one two\nthree\n")
    found = [record.strings("body") for record in read_records(path, FIELDS, READERS)]
    assert found == [["one", "two"], ["three"]]
    path.write_text("\n")
    with pytest.raises(DataError, match="is empty"):
        list(read_records(path, FIELDS, READERS))


def test_values_are_converted_to_their_type_or_refused() -> None:
    record = LabelledRecord({"score": "4.5", "none": "", "words": ["a", "b"], "mixed": ["a", 1], "odd": "four"}, "here")
    assert (record.number("score"), record.number("none")) == (4.5, None)
    assert record.strings("words") == ["a", "b"]
    for convert, field in ((record.number, "odd"), (record.strings, "mixed"), (record.strings, "score")):
        with pytest.raises(DataError, match=f"here: field `{field}`"):
            convert(field)


def parts_of(data: Path, **changes: object) -> list[tuple[str, str, str]]:
    """Return split, text and label of each record."""
    records = files.records_of(params_of("classification", **changes), data, FIELDS)
    return [(part, record.text("body"), record.category("topic")) for part, record in records]


def test_each_file_is_the_split_that_the_params_name_and_a_missing_one_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("body,topic\none,x\n")
    (tmp_path / "b.jsonl").write_text('{"body": "two", "topic": "y"}\n')
    assert parts_of(tmp_path / "a.csv") == [("train", "one", "x")]
    found = parts_of(tmp_path, splits={"train": "a.csv", "test": "b.jsonl"})
    assert found == [("train", "one", "x"), ("test", "two", "y")]
    with pytest.raises(DataError, match=r"there is no file .*c\.csv"):
        parts_of(tmp_path, splits={"train": "a.csv", "test": "c.csv"})
    with pytest.raises(DataError, match="is not a folder, but `splits`"):
        parts_of(tmp_path / "a.csv", splits={"train": "a.csv"})


def test_a_hub_dataset_gives_the_names_of_its_classes_and_a_local_one_has_no_commit(tmp_path: Path) -> None:
    import datasets

    features = datasets.Features({"body": datasets.Value("string"), "topic": datasets.ClassLabel(names=["no", "yes"])})
    for split, labels in {"train": [0, 1], "validation": [1, -1]}.items():
        rows = {"body": [f"{split} {label}" for label in labels], "topic": labels}
        datasets.Dataset.from_dict(rows, features=features).to_parquet(tmp_path / f"{split}-00000-of-00001.parquet")
    hub = HubParams(dataset=str(tmp_path))
    told = parts_of(tmp_path, hub=hub, splits={"train": "train", "test": "validation"})
    assert told[:2] == [("train", "train 0", "no"), ("train", "train 1", "yes")]
    assert told[2:] == [("test", "validation 1", "yes"), ("test", "validation -1", "")]
    assert parts_of(tmp_path, hub=hub) == told[:2]
    for params in (PARAMS, PARAMS.model_copy(update={"hub": hub})):
        assert at_commit(params, hub_commit(params)) is params


def test_a_hub_dataset_is_read_at_its_first_resolved_commit(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(files, "commit_of", lambda split: "0a" * 20)
    on_hub = PARAMS.model_copy(update={"hub": HubParams(dataset="someone/something")})
    pinned = at_commit(on_hub, hub_commit(on_hub))
    assert pinned.hub == HubParams(dataset="someone/something", revision="0a" * 20)
    assert "`hub.revision`" in caplog.messages[0]
    assert hub_commit(pinned) == "0a" * 20
    assert len(caplog.messages) == 1
