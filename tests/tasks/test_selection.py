"""Claim: records of a task are read from any kind of file, labels are one value, a list, or a separated string, and
what a task cannot use is named with its line."""

import gzip
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from clozeline.params.tasks import FinetuneParams, HubParams
from clozeline.system.errors import DataError
from clozeline.tasks import formats, selection
from clozeline.tasks.selection import LabelledRecord, at_commit, hub_commit, read_records
from tests.make.tasks import params_of

FIELDS = {"text_field": "body", "label_field": "topic"}


def read(path: Path) -> list[tuple[str, str]]:
    return [(record.text("body"), record.category("topic")) for record in read_records(path, FIELDS)]


def test_a_table_is_read_by_its_suffix_and_values_are_converted_to_their_type_or_refused(tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl.gz"
    rows = "".join(json.dumps({"body": "a", "topic": topic}) + "\n" for topic in ("x", None, 0, True))
    path.write_bytes(gzip.compress((" " * (1 << 19) + "\n" + rows).encode()))  # white space before is accepted
    assert read(path) == [("a", label) for label in ("x", "", "0", "True")]
    record = LabelledRecord({"score": "4.5", "none": "", "words": ["a", "b"], "mixed": ["a", 1], "odd": "four"}, "here")
    assert (record.number("score"), record.number("none")) == (4.5, None)
    assert record.strings("words") == ["a", "b"]
    for convert, field in ((record.number, "odd"), (record.strings, "mixed"), (record.strings, "score")):
        with pytest.raises(DataError, match=f"here: field `{field}`"):
            convert(field)


@pytest.mark.parametrize(
    ("file", "content", "told"),
    [
        ("data.csv", None, "there is no file(?s:.*)data.csv"),
        ("data.doc", b"x", r"data\.doc has a format that cannot be read"),
        ("data.jsonl", b'{"body": "a", "topic": ["x"]}\n', "line 1: field `topic`(?s:.*)list: ..x"),
        ("data.jsonl", b'{"body": 3, "topic": "x"}\n', "line 1: field `body`(?s:.*)int: 3"),
        *((f"data{suffix}", b"", "is empty(?s:.*)0 bytes") for suffix in selection.TABLES),
        ("data.csv", b"\xef\xbb\xbf\n", "is empty(?s:.*)body, topic"),
        ("labels/a.csv", b"body,topic\n", "labels is a folder, and `splits` names no file in it(?s:.*)a.csv"),
    ],
)
def test_what_cannot_be_read_is_reported_with_file_line_and_value(
    file: str, content: bytes | None, told: str, tmp_path: Path
) -> None:
    if content is not None:
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_bytes(content)
    with pytest.raises(DataError, match=told):
        read(tmp_path / Path(file).parts[0])


def parts_of(data: Path, **changes: object) -> list[tuple[str, str, str]]:
    """Return split, text and label of each record."""
    records = selection.records_of(params_of("classification", **changes), data, FIELDS)
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


def test_a_hub_dataset_gives_the_names_of_its_classes_and_is_read_at_its_first_resolved_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    import datasets

    features = datasets.Features({"body": datasets.Value("string"), "topic": datasets.ClassLabel(names=["no", "yes"])})
    for split, labels in {"train": [0, 1], "validation": [1, -1]}.items():
        rows = {"body": [f"{split} {label}" for label in labels], "topic": labels}
        datasets.Dataset.from_dict(rows, features=features).to_parquet(tmp_path / f"{split}-00000-of-00001.parquet")
    hub = HubParams(dataset=str(tmp_path))
    told = parts_of(tmp_path, hub=hub, splits={"train": "train", "test": "validation"})
    assert told[:2] == [("train", "train 0", "no"), ("train", "train 1", "yes")]
    assert told[2:] == [("test", "validation 1", "yes"), ("test", "validation -1", "")]
    params: FinetuneParams = params_of("classification")
    for local in (params, params.model_copy(update={"hub": hub})):
        assert at_commit(local, hub_commit(local)) is local
    monkeypatch.setattr(selection, "commit_of", lambda split: "0a" * 20)
    on_hub = params.model_copy(update={"hub": HubParams(dataset="someone/something")})
    pinned = at_commit(on_hub, hub_commit(on_hub))
    assert pinned.hub == HubParams(dataset="someone/something", revision="0a" * 20)
    assert hub_commit(pinned) == "0a" * 20
    assert ["`hub.revision`" in message for message in caplog.messages] == [True]


@pytest.mark.parametrize(
    ("label", "multi_label", "labels"),
    [
        ("a|b", False, ("a|b",)),
        (3, False, ("3",)),
        (" ", False, None),
        (["a", "b"], True, ("a", "b")),
        ("a| b|", True, ("a", "b")),
        ("", True, ()),
        (None, True, None),
    ],
)
def test_labels_are_one_value_or_a_list_or_a_string_with_separators(
    label: object, multi_label: bool, labels: object
) -> None:
    record = LabelledRecord({"text": "x", "other": "y", "label": label}, "here")
    params = params_of("classification", second_field="other", multi_label=multi_label)
    assert formats.labels_in(record, params) == labels
    assert formats.texts_in(record, params) == ("x", "y")
    if multi_label:
        with pytest.raises(DataError, match="here: field `label`"):
            formats.labels_in(LabelledRecord({"label": [1, 2]}, "here"), params)


FIELDS = {"text_field": "body", "label_field": "topic"}
FILES = {"good": "some.pos", "bad": "some.neg"}
DULL = "dull\n\nand long"
CONTENTS: Mapping[str, bytes] = {
    "README.txt": b"Sentences of two kinds.\n",
    "some.pos": "a fine film . \r\n\n  größe\n".encode(),
    "some.neg": b"a dull film\nno end of it",
    "table.csv": b"body,topic\na,x\n",
    "empty.neg": b"\n \n",
    "latin.neg": "größe\n".encode("latin-1"),
    "plain.txt": b"\na fine film\n",
    "dev.txt": b'\n{"body": "a", "topic": "x", "metadata": {}}\n',
    "files/one.pos": b"a\n",
    "reviews/neg/0_1.txt": DULL.encode(),
    "reviews/pos/0_9.txt": b"fine",
    "reviews/pos/1_8.txt": b"good",
    "reviews/unsup/0_0.txt": b"so so",
    "reviews/.git/HEAD": b"x",
    "reviews/pos/.hidden": b"x",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, content in CONTENTS.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(content)
    return tmp_path


@pytest.mark.parametrize(
    ("data", "label_files", "expected"),
    [
        (".", FILES, ["a fine film ./good", "größe/good", "a dull film/bad", "no end of it/bad"]),
        ("reviews", None, [f"{DULL}/neg", "fine/pos", "good/pos", "so so/unsup"]),
        ("reviews", {"1": "pos", "0": "neg"}, ["fine/1", "good/1", f"{DULL}/0"]),
        ("dev.txt", None, ["a/x"]),
    ],
)
def test_each_line_of_a_label_file_or_each_file_of_a_label_folder_is_a_text(
    folder: Path, data: str, label_files: Mapping[str, str] | None, expected: list[str]
) -> None:
    records = list(read_records(folder / data, FIELDS, formats.label_readers(label_files)))
    assert [f"{record.text('body')}/{record.category('topic')}" for record in records] == expected
    if label_files == FILES:
        assert records[1].place == f"{folder / 'some.pos'}, line 3"


@pytest.mark.parametrize(
    ("label_files", "data", "told"),
    [
        (FILES | {"bad": "some.negative"}, ".", "names no file"),
        (FILES | {"bad": "table.csv"}, ".", "names a table"),
        (FILES | {"bad": "empty.neg"}, ".", "empty.neg holds no text"),
        (FILES | {"bad": "latin.neg"}, ".", "latin.neg, line 1, byte 2: not UTF-8"),
        (FILES, "table.csv", "table.csv is a file, but `label_files`"),
        (None, "files", "tell the labels"),
        (None, "plain.txt", "plain.txt, line 2: a text without a label"),
    ],
)
def test_an_unusable_label_file_is_named(
    folder: Path, label_files: Mapping[str, str] | None, data: str, told: str
) -> None:
    with pytest.raises(DataError, match=told):
        list(read_records(folder / data, FIELDS, formats.label_readers(label_files)))


def test_a_split_may_be_a_folder_of_label_folders(folder: Path) -> None:
    for name in ("train", "test"):
        shutil.copytree(folder / "reviews", folder / name)
    splits, label_files = {"train": "train", "test": "test"}, {"b": "neg", "a": "pos"}
    params = params_of("classification", splits=splits, label_files=label_files)
    formats.require_readable(params, folder)
    found = [
        (part, record.text("text"), record.category("label")) for part, record in formats.task_records(params, folder)
    ]
    texts = [(DULL, "b"), ("fine", "a"), ("good", "a")]
    assert found == [(part, text, label) for part in splits for text, label in texts]
    with pytest.raises(DataError, match="no field `second`"):
        list(read_records(folder / "reviews", {**FIELDS, "second_field": "second"}, formats.label_readers(None)))


SQUAD = {"question_field": "question", "context_field": "context", "answers_field": "answers"}
ANSWER = {"text": "Rouen", "answer_start": 10}


def paragraphs(*paragraphs: object) -> dict[str, Any]:
    return {"version": "v2.0", "data": [{"paragraphs": list(paragraphs)}]}


def asked(*questions: dict[str, Any]) -> dict[str, Any]:
    return paragraphs({"context": "They took Rouen.", "qas": list(questions)})


def squad(folder: Path, content: object) -> list[LabelledRecord]:
    (folder / "dev.json").write_text(content if isinstance(content, str) else json.dumps(content))
    return list(formats.read_squad(folder / "dev.json", SQUAD))


def test_questions_come_with_context_and_answers_and_impossible_ones_with_none(tmp_path: Path) -> None:
    impossible = {"question": "Who?", "answers": [], "plausible_answers": [ANSWER], "is_impossible": True}
    found, other = squad(tmp_path, asked({"question": "What?", "id": "1", "answers": [ANSWER, ANSWER]}, impossible))
    answers = {"text": ["Rouen", "Rouen"], "answer_start": [10, 10]}
    assert found.values == {"question": "What?", "context": "They took Rouen.", "answers": answers}
    assert found.place.endswith("data[0].paragraphs[0].qas[0]")
    assert other.values["answers"] == {"text": [], "answer_start": []}


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ('{"data": [', "dev.json is not JSON"),
        ([1], 'dev.json: expected "data"(?s:.*)list: .1'),
        ({"data": [{"title": "x"}]}, r'data\[0\]: expected "paragraphs"(?s:.*)keys: title'),
        (asked({"answers": []}), r'qas\[0\]: expected "question"(?s:.*)keys: answers'),
        (asked({"question": "Q", "answers": [{"text": "x"}]}), 'expected "answer_start"(?s:.*)keys: text'),
        (paragraphs({"context": "c", "QAs": []}), r'paragraphs\[0\](?s:.*)rename "QAs" to "qas"'),
        (paragraphs({"context": "c", "qas": ["What?"]}), r"qas\[0\](?s:.*)str: What"),
    ],
)
def test_a_malformed_file_is_reported_with_the_place_and_the_likely_key(
    tmp_path: Path, content: object, told: str
) -> None:
    with pytest.raises(DataError, match=told):
        squad(tmp_path, content)


@pytest.mark.parametrize(
    ("text", "where", "expected"),
    [
        ("A\tO\nb\tB-x\n\nc\tO\n\t\nd\tO\n \t \n\n\ne\tO", {}, ["A b/O B-x", "c/O", "d/O", "e/O"]),
        ("U.N. NNP I-NP I-ORG\r\n", {}, ["U.N./I-ORG"]),
        ("1\tword\tO\tB-x\tjunk\n", {"token_column": 1, "tag_column": 3}, ["word/B-x"]),
        ("-DOCSTART- -X- -X- O\n\n# id 4\n# O\n# O\nx B-y\n", {}, ["# # x/O O B-y"]),
        ("a\tO\nb\tO\nlonely\n", {}, "line 3: fewer than 2 columns"),
        ("a\tO\nb\tO\nword\tNNP\n", {}, "line 3: NNP"),
        ("a\tO\nb\tO\n\tO\tO\n", {}, "line 3: a tag without a word"),
        ("a\tO\n", {"token_column": 2}, "token_column"),
    ],
)
def test_sentences_are_read_from_columns_and_a_malformed_line_is_named(
    tmp_path: Path, text: str, where: dict[str, int], expected: list[str] | str
) -> None:
    path = tmp_path / "data.conll"
    path.write_bytes(text.encode())
    fields, readers, _ = formats.record_format(params_of("tagging", **where))
    records = read_records(path, fields, readers)
    if isinstance(expected, str):
        with pytest.raises(DataError, match=expected):
            list(records)
    else:
        found = [f"{' '.join(it.strings('tokens'))}/{' '.join(it.strings('ner_tags'))}" for it in records]
        assert found == expected


def test_columns_without_a_header_get_the_configured_names(tmp_path: Path) -> None:
    path = tmp_path / "sts.tsv"
    fields = {"first_field": "sentence1", "second_field": "sentence2", "score_field": "score"}
    read = formats.pair_readers(["score", "sentence1", "sentence2"])[".tsv"]
    path.write_text('4.5\tA "lone quote\tB\tsource\r\n\t\t\n\tC\tD\n')
    records = list(read(path, fields))
    assert [record.values["score"] for record in records] == ["4.5", ""]
    assert (records[0].values["sentence1"], records[1].place) == ('A "lone quote', f"{path}, line 3")
    path.write_text("4.5\tA\n")
    with pytest.raises(DataError, match="line 1: 2 columns"):
        list(read(path, fields))
    with pytest.raises(DataError, match="no field `sentence2`"):
        list(formats.pair_readers(["score", "sentence1"])[".tsv"](path, fields))
