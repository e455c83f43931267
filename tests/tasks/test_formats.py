"""Claim: labels are read from one value, a list, or a separated string; "not labelled" differs from "no label"."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from clozeline.system.errors import DataError
from clozeline.tasks import formats
from clozeline.tasks.files import LabelledRecord, read_records
from tests.make.tasks import params_of


@pytest.mark.parametrize(
    ("label", "multi_label", "labels"),
    [
        ("a|b", False, ("a|b",)),
        (3, False, ("3",)),
        (" a ", False, ("a",)),
        ("", False, None),
        (None, False, None),
        (["a", "b"], True, ("a", "b")),
        ("a| b|", True, ("a", "b")),
        ([], True, ()),
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
    assert formats.record_format(params)[0] == {"text_field": "text", "label_field": "label", "second_field": "other"}


def test_a_label_list_with_other_values_is_refused() -> None:
    with pytest.raises(DataError, match="here: field `label`"):
        formats.labels_in(LabelledRecord({"label": [1, 2]}, "here"), params_of("classification", multi_label=True))


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
    "nothing/.hidden": b"x",
    "reviews/neg/0_1.txt": DULL.encode(),
    "reviews/pos/0_9.txt": b"fine",
    "reviews/pos/1_8.txt": b"good",
    "reviews/unsup/0_0.txt": b"so so",
    "reviews/urls.txt": b"where from",
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
    ("label_files", "data", "problem", "given"),
    [
        (FILES | {"bad": "some.negative"}, ".", "names no file", "some.negative"),
        (FILES | {"bad": "table.csv"}, ".", "names a table", "{bad: table.csv}"),
        (FILES | {"bad": "empty.neg"}, ".", "empty.neg holds no text", "`bad`"),
        (FILES | {"bad": "nothing"}, ".", "nothing holds no text", "`bad`"),
        (FILES | {"bad": "latin.neg"}, ".", "latin.neg, line 1, byte 2: not UTF-8", "0xf6"),
        (FILES, "table.csv", "table.csv is a file, but `label_files`", "table.csv"),
        (None, "files", "tell the labels", "one.pos"),
        (None, "plain.txt", "plain.txt, line 2: a text without a label", "a fine film"),
        (None, "nowhere", "there is no file", "nowhere"),
    ],
)
def test_an_unusable_label_file_is_named(
    folder: Path, label_files: Mapping[str, str] | None, data: str, problem: str, given: str
) -> None:
    with pytest.raises(DataError) as caught:
        list(read_records(folder / data, FIELDS, formats.label_readers(label_files)))
    assert problem in caught.value.problem
    assert given in str(caught.value)


def test_label_files_refuse_a_second_field(folder: Path) -> None:
    with pytest.raises(DataError, match="no field `second`"):
        list(read_records(folder / "reviews", {**FIELDS, "second_field": "second"}, formats.label_readers(None)))


def test_a_split_may_be_a_folder_of_label_folders(folder: Path) -> None:
    for name in ("train", "test"):
        for label in ("neg", "pos", "unsup"):
            (folder / name / label).mkdir(parents=True)
            (folder / name / label / "0.txt").write_text(f"{name} {label}")
    params = params_of(
        "classification", splits={"train": "train", "test": "test"}, label_files={"b": "neg", "a": "pos"}
    )
    formats.require_readable(params, folder)
    found = [
        (part, record.text("text"), record.category("label")) for part, record in formats.task_records(params, folder)
    ]
    assert found == [
        (part, f"{part} {name}", label) for part in ("train", "test") for name, label in (("neg", "b"), ("pos", "a"))
    ]


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
    ("content", "place", "given", "do"),
    [
        ('{"data": [', "dev.json is not JSON", "", "correct it"),
        ([1], 'dev.json: expected "data"', "list: [1]", "correct the file"),
        ({"data": [{"title": "x"}]}, 'data[0]: expected "paragraphs"', "keys: title", "correct the file"),
        (asked({"answers": []}), 'qas[0]: expected "question"', "keys: answers", "correct the file"),
        (asked({"question": "Q", "answer": []}), "qas[0]", "keys: question, answer", 'rename "answer" to "answers"'),
        (asked({"question": "Q", "answers": [{"text": "x"}]}), 'expected "answer_start"', "keys: text", "correct"),
        (paragraphs({"context": "c"}), "paragraphs[0]", "keys: context", "correct the file"),
        (paragraphs({"context": "c", "qa": []}), "paragraphs[0]", "keys: context, qa", 'rename "qa" to "qas" in the'),
        (paragraphs({"context": "c", "QAs": []}), "paragraphs[0]", "keys: context, QAs", 'rename "QAs" to "qas"'),
        (paragraphs({"context": "c", "qas": {"a": 1}}), "paragraphs[0]", "\"qas\": {'a': 1}", "correct the file"),
        (paragraphs({"context": "c", "qas": ["What?"]}), "qas[0]", "str: What", "correct the file"),
        (paragraphs(["c"]), "paragraphs[0]", "list: ", "correct the file"),
    ],
)
def test_a_malformed_file_is_reported_with_the_place_and_the_likely_key(
    tmp_path: Path, content: object, place: str, given: str, do: str
) -> None:
    with pytest.raises(DataError) as caught:
        squad(tmp_path, content)
    assert place in caught.value.problem
    assert given in (caught.value.given or "")
    assert do in caught.value.do
    assert "`" not in str(caught.value), "the command line reads back-quoted names as knobs"


@pytest.mark.parametrize(
    ("text", "where", "expected"),
    [
        ("A\tO\nb\tB-x\n\nc\tO\n\t\nd\tO\n \t \n\n\ne\tO", {}, ["A b/O B-x", "c/O", "d/O", "e/O"]),
        ("APC2\tNN\tO\tB-Gene\r\n", {}, ["APC2/B-Gene"]),
        ("U.N. NNP I-NP I-ORG\n", {}, ["U.N./I-ORG"]),
        ("1\tword\tO\tB-x\tjunk\n", {"token_column": 1, "tag_column": 3}, ["word/B-x"]),
        ("1\tword\tO\tB-x\tjunk\n", {"token_column": -4, "tag_column": -2}, ["word/B-x"]),
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
    assert {".conll", ".iob", ".iob2", ".bio", ".txt", ".tsv"} <= {*readers}
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
    assert records[0].values["sentence1"] == 'A "lone quote'
    assert records[1].place.endswith("line 3")
    path.write_text("4.5\tA\n")
    with pytest.raises(DataError, match="line 1: 2 columns"):
        list(read(path, fields))
    with pytest.raises(DataError, match="no field `sentence2`"):
        list(formats.pair_readers(["score", "sentence1"])[".tsv"](path, fields))
    assert formats.pair_readers(None) == {}
