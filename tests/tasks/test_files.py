"""Claim: records of a task are read from any kind of file, and what a task cannot use is named with its line."""

import gzip
import json
from pathlib import Path
from typing import NamedTuple

import pytest

from clozeline.params.reading import read_params
from clozeline.params.tasks import FinetuneParams, HubParams, SplitsParams
from clozeline.records.reading.streams import lines_of
from clozeline.system.errors import DataError
from clozeline.tasks import files
from clozeline.tasks.files import TABLES, LabelledRecord, at_commit, hub_commit, read_records, records_of


class Labelled(NamedTuple):
    text: str
    label: str


def read(path: Path) -> list[Labelled]:
    records = read_records(path, {"text_field": "body", "label_field": "topic"})
    return [Labelled(record.text("body"), record.category("topic")) for record in records]


def test_a_table_is_read_by_its_suffix_and_a_label_may_be_a_number_a_boolean_or_missing(tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl.gz"
    labels = ["x", None, 0, True]
    path.write_bytes(gzip.compress("".join(json.dumps({"body": "a", "topic": it}) + "\n" for it in labels).encode()))
    assert read(path) == [Labelled("a", label) for label in ("x", "", "0", "True")]


DIRT = {
    "a missing file": ("data.csv", None, "there is no file", "data.csv"),
    "an unknown kind": ("data.doc", b"x", "has a format that cannot be read", ".doc"),
    "no suffix": ("data", b"x", "has a format that cannot be read", ".csv"),
    "a label in a list": ("data.jsonl", b'{"body": "a", "topic": ["x"]}\n', "line 1: field `topic`", "list: ['x']"),
    "a text that is none": ("data.jsonl", b'{"body": 3, "topic": "x"}\n', "line 1: field `body`", "int: 3"),
    "an empty file": ("data.csv", b"", "is empty", "0 bytes"),
}


@pytest.mark.parametrize("name", DIRT)
def test_invalid_values_are_reported_with_file_line_and_value(tmp_path: Path, name: str) -> None:
    file, content, problem, given = DIRT[name]
    if content is not None:
        (tmp_path / file).write_bytes(content)
    with pytest.raises(DataError) as caught:
        read(tmp_path / file)
    assert str(tmp_path / file) in caught.value.problem
    assert problem in caught.value.problem
    assert given in str(caught.value)


@pytest.mark.parametrize(
    "content",
    [b"", b"\n \r\n", b"\xef\xbb\xbf\n", gzip.compress(b"")],
    ids=["0 bytes", "white space", "a byte order mark", "compressed"],
)
@pytest.mark.parametrize("suffix", [*TABLES, ".words"])
def test_an_empty_file_of_any_format_is_called_empty(tmp_path: Path, suffix: str, content: bytes) -> None:
    path = tmp_path / f"data{suffix}"
    path.write_bytes(content)
    with pytest.raises(DataError) as caught:
        list(read_records(path, {"text_field": "body"}, {".words": lambda path, fields: iter(())}))
    assert f"{path} is empty" in caught.value.problem
    assert "body" in caught.value.problem
    assert "`data` or `splits`" in caught.value.do


def test_white_space_before_the_records_is_accepted(tmp_path: Path) -> None:
    path = tmp_path / "data.csv"
    path.write_bytes(b"\n" * (1 << 19) + b"body,topic\na,x\n")
    assert read(path) == [Labelled("a", "x")]


def test_a_kind_of_task_may_add_its_own_file_format(tmp_path: Path) -> None:
    path = tmp_path / "data.words"
    path.write_text("one two\nthree\n")

    def words(file, fields):
        assert dict(fields) == {"text_field": "body"}
        return (
            LabelledRecord({"body": line.split()}, f"{file}, line {n}")
            for n, line in enumerate(lines_of(file), start=1)
        )

    records = list(read_records(path, {"text_field": "body"}, {".words": words}))
    assert [record.strings("body") for record in records] == [["one", "two"], ["three"]]
    assert records[1].place == f"{path}, line 2"


def test_values_are_converted_to_their_type_or_refused() -> None:
    record = LabelledRecord({"score": "4.5", "none": "", "words": ["a", "b"], "mixed": ["a", 1], "odd": "four"}, "here")
    assert (record.number("score"), record.number("none")) == (4.5, None)
    assert record.strings("words") == ["a", "b"]
    for refused in (lambda: record.number("odd"), lambda: record.strings("mixed"), lambda: record.strings("score")):
        with pytest.raises(DataError, match="here: field"):
            refused()


@pytest.mark.parametrize("name", ["labels", "labels.parquet"])
def test_a_folder_without_splits_is_reported_with_the_files_in_it(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    (tmp_path / name / "a.csv").write_text("body,topic\n")
    with pytest.raises(DataError, match="is a folder, and `splits` names no file in it") as caught:
        read(tmp_path / name)
    assert caught.value.given == "a.csv"
    assert "splits" in caught.value.do


PARAMS = read_params(Path(__file__).parents[2] / "params.yaml").finetune["library"].model_copy(update={"splits": None})
FIELDS = {"text_field": "body", "label_field": "topic"}


def parts_of(data: Path, **changes: object) -> list[tuple[str, str, str]]:
    """Return split, text and label of each record."""
    params: FinetuneParams = PARAMS.model_copy(update=changes)
    records = records_of(params, data, FIELDS)
    return [(part, record.text("body"), record.category("topic")) for part, record in records]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "a.csv").write_text("body,topic\none,x\n")
    (tmp_path / "b.jsonl").write_text('{"body": "two", "topic": "y"}\n')
    return tmp_path


def test_each_file_is_the_split_that_the_params_name_and_a_missing_one_is_named(folder: Path) -> None:
    assert parts_of(folder / "a.csv") == [("train", "one", "x")]
    splits = SplitsParams(train="a.csv", test="b.jsonl")
    assert parts_of(folder, splits=splits) == [("train", "one", "x"), ("test", "two", "y")]
    with pytest.raises(DataError, match=r"there is no file .*c\.csv"):
        parts_of(folder, splits=SplitsParams(train="a.csv", test="c.csv"))
    with pytest.raises(DataError, match="is not a folder, but `splits`"):
        parts_of(folder / "a.csv", splits=SplitsParams(train="a.csv"))


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> HubParams:
    """A dataset as the hub stores it: Parquet files by split, whose features name the class ids."""
    import datasets

    folder = tmp_path_factory.mktemp("hub")
    features = datasets.Features({"body": datasets.Value("string"), "topic": datasets.ClassLabel(names=["no", "yes"])})
    for split, labels in {"train": [0, 1], "validation": [1, -1]}.items():
        rows = {"body": [f"{split} {label}" for label in labels], "topic": labels}
        datasets.Dataset.from_dict(rows, features=features).to_parquet(folder / f"{split}-00000-of-00001.parquet")
    return HubParams(dataset=str(folder))


def test_a_hub_dataset_gives_the_names_of_its_classes(hub: HubParams, tmp_path: Path) -> None:
    told = parts_of(tmp_path, hub=hub, splits=SplitsParams(train="train", test="validation"))
    assert told[:2] == [("train", "train 0", "no"), ("train", "train 1", "yes")]
    assert told[2:] == [("test", "validation 1", "yes"), ("test", "validation -1", "")]
    assert {part for part, *_ in parts_of(tmp_path, hub=hub)} == {"train"}


def test_a_hub_dataset_is_read_at_its_first_resolved_commit(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(files, "commit_of", lambda split: None if Path(split.dataset).exists() else "0a" * 20)
    on_hub = PARAMS.model_copy(update={"hub": HubParams(dataset="someone/something")})
    pinned = at_commit(on_hub, hub_commit(on_hub))
    assert pinned.hub == HubParams(dataset="someone/something", revision="0a" * 20)
    assert caplog.messages == [
        "someone/something: the dataset may change: set `hub.revision` of this task to pin a commit"
    ]
    assert hub_commit(pinned) == "0a" * 20
    assert len(caplog.messages) == 1


def test_a_folder_and_files_have_no_commit(hub: HubParams) -> None:
    for params in (PARAMS, PARAMS.model_copy(update={"hub": hub})):
        assert at_commit(params, hub_commit(params)) is params
