"""Claim: labels are read from one value, a list, or a separated string; "not labelled" differs from "no label"."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from clozeline.system.errors import DataError
from clozeline.tasks.classification.data import Selection, read_selection
from clozeline.tasks.files import LabelledRecord, read_records
from clozeline.tasks.formats import label_readers, labels_in, read_squad, record_format, tag_readers, texts_in
from clozeline.tasks.task import TaskInputs
from clozeline.tokenizing.tokenizer.folder import OpenTokenizer
from tests.make.tasks import params_of, write_rows


def read(label: object, **changes: object) -> tuple[tuple[str, ...], tuple[str, ...] | None]:
    record = LabelledRecord({"text": "x", "other": "y", "label": label}, "here")
    params = params_of("classification", **changes)
    return texts_in(record, params), labels_in(record, params)


@pytest.mark.parametrize(
    ("label", "labels"), [("a|b", ("a|b",)), (3, ("3",)), (" a ", ("a",)), ("", None), (None, None)]
)
def test_a_single_label_is_not_split_at_the_separator(label: object, labels: object) -> None:
    assert read(label) == (("x",), labels)


@pytest.mark.parametrize(
    ("label", "labels"), [(["a", "b"], ("a", "b")), ("a| b|", ("a", "b")), ([], ()), ("", ()), (None, None)]
)
def test_several_labels_are_a_list_or_a_string_with_separators(label: object, labels: object) -> None:
    assert read(label, multi_label=True)[1] == labels


def test_a_pair_is_read_from_two_fields_and_a_label_list_with_other_values_refused() -> None:
    with pytest.raises(DataError, match="here: field `label`"):
        read([1, 2], multi_label=True)
    assert read("a", second_field="other")[0] == ("x", "y")
    assert record_format(params_of("classification", second_field="other"))[0] == {
        "text_field": "text",
        "label_field": "label",
        "second_field": "other",
    }


FIELDS = {"text_field": "body", "label_field": "topic"}
FILES = {"good": "some.pos", "bad": "some.neg"}


def texts_of(path: Path, label_files: Mapping[str, str] | None = None) -> list[tuple[str, str]]:
    """Return text and label of each record."""
    records = read_records(path, FIELDS, label_readers(label_files))
    return [(record.text("body"), record.category("topic")) for record in records]


@pytest.fixture
def sentences(tmp_path: Path) -> Path:
    """Folder of two files named after their labels, and one file that holds no data."""
    folder = tmp_path / "sentences"
    folder.mkdir()
    (folder / "README.txt").write_text("Sentences of two kinds.\n")
    (folder / "some.pos").write_bytes("a fine film . \r\n\n  größe\n".encode())
    (folder / "some.neg").write_text("a dull film\nno end of it")
    return folder


@pytest.fixture
def reviews(tmp_path: Path) -> Path:
    """Folders for each label and for unlabelled texts, with some files among them that are not texts."""
    folder = tmp_path / "reviews"
    texts = {"neg/0_1.txt": "dull\n\nand long", "pos/0_9.txt": "fine", "pos/1_8.txt": "good", "unsup/0_0.txt": "so so"}
    for name, text in {**texts, "urls.txt": "where from", ".git/HEAD": "x", "pos/.hidden": "x"}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def test_each_line_of_a_label_file_is_a_text_with_its_place(sentences: Path) -> None:
    good, bad = ["a fine film .", "größe"], ["a dull film", "no end of it"]
    expected = [*((text, "good") for text in good), *((text, "bad") for text in bad)]
    assert texts_of(sentences, FILES) == expected
    places = [record.place for record in read_records(sentences, FIELDS, label_readers(FILES))]
    assert places[:2] == [f"{sentences / 'some.pos'}, line 1", f"{sentences / 'some.pos'}, line 3"]


def test_each_file_of_a_label_folder_or_of_the_named_ones_is_a_text(reviews: Path) -> None:
    dull = "dull\n\nand long"
    expected = [(dull, "neg"), ("fine", "pos"), ("good", "pos"), ("so so", "unsup")]
    assert texts_of(reviews) == expected
    assert texts_of(reviews, {"1": "pos", "0": "neg"}) == [("fine", "1"), ("good", "1"), (dull, "0")]


def test_json_lines_in_a_txt_file_are_recognized(tmp_path: Path) -> None:
    (tmp_path / "dev.txt").write_text('\n{"body": "a", "topic": "x", "metadata": {}}\n')
    assert texts_of(tmp_path / "dev.txt") == [("a", "x")]


DIRT = {
    "a label's file that is not there": (FILES | {"bad": "some.negative"}, ".", "names no file", "some.negative"),
    "a table": (FILES | {"bad": "table.csv"}, ".", "names a table", "{bad: table.csv}"),
    "an empty file": (FILES | {"bad": "empty.neg"}, ".", "empty.neg holds no text", "`bad`"),
    "an empty folder": (FILES | {"bad": "nothing"}, ".", "nothing holds no text", "`bad`"),
    "Latin-1": (FILES | {"bad": "latin.neg"}, ".", "latin.neg, line 1, byte 2: not UTF-8", "0xf6"),
    "a file in place of the folder": (FILES, "table.csv", "table.csv is a file, but `label_files`", "table.csv"),
    "a folder of files alone": (None, "files", "tell the labels", "one.pos"),
    "texts alone": (None, "plain.txt", "plain.txt, line 2: a text without a label", "a fine film"),
    "no folder": (None, "nowhere", "there is no file", "nowhere"),
}


@pytest.mark.parametrize("name", DIRT)
def test_an_unusable_label_file_is_named(sentences: Path, name: str) -> None:
    label_files, data, problem, given = DIRT[name]
    (sentences / "table.csv").write_text("body,topic\na,x\n")
    (sentences / "empty.neg").write_text("\n \n")
    (sentences / "latin.neg").write_bytes("größe\n".encode("latin-1"))
    (sentences / "plain.txt").write_text("\na fine film\n")
    (sentences / "nothing").mkdir()
    (sentences / "files").mkdir()
    (sentences / "files" / "one.pos").write_text("a\n")
    with pytest.raises(DataError) as caught:
        texts_of(sentences / data, label_files)
    assert problem in caught.value.problem
    assert given in str(caught.value)


def test_label_files_refuse_a_second_field(reviews: Path) -> None:
    with pytest.raises(DataError, match="no field `second`"):
        list(read_records(reviews, {**FIELDS, "second_field": "second"}, label_readers(None)))


def selected(data: Path, encoder: Path, **changes: object) -> Selection:
    params = params_of("classification", **changes)
    inputs = TaskInputs(params, 1, encoder, data, Path("not read"))
    return read_selection(inputs, params, OpenTokenizer.open(encoder))


def test_files_folders_and_a_table_give_the_same_task(small_encoder: Path, tmp_path: Path) -> None:
    texts = {label: [f"{label} text {number}" for number in range(40)] for label in ("good", "bad")}
    records = [{"text": text, "label": label} for label in texts for text in texts[label]]
    write_rows(tmp_path / "table.jsonl", records)
    for label, own in texts.items():
        (tmp_path / f"some.{label}").write_text("\n".join(own))
        (tmp_path / "folders" / label).mkdir(parents=True)
        for number, text in enumerate(own):
            (tmp_path / "folders" / label / f"{number}.txt").write_text(f"{text}\n")
    expected = selected(tmp_path / "table.jsonl", small_encoder)
    assert expected.count["num_used"] == 80
    files = {"good": "some.good", "bad": "some.bad"}
    assert selected(tmp_path, small_encoder, label_files=files) == expected
    assert selected(tmp_path / "folders", small_encoder) == expected


def test_a_split_may_be_a_folder_of_label_folders(small_encoder: Path, tmp_path: Path) -> None:
    for part, num_texts in (("train", 30), ("test", 5)):
        for label in ("neg", "pos", "unsup"):
            (tmp_path / part / label).mkdir(parents=True)
            for number in range(num_texts):
                (tmp_path / part / label / f"{number}.txt").write_text(f"{part} {label} {number}")
    splits, files = {"train": "train", "test": "test"}, {"neg": "neg", "pos": "pos"}
    found = selected(tmp_path, small_encoder, splits=splits, label_files=files)
    assert found.labels == ("neg", "pos")
    assert len(found.test) == 10
    assert all(example.text.startswith("test ") for example in found.test)
    assert len(found.train) + len(found.validation) == 60


SQUAD = {"question_field": "question", "context_field": "context", "answers_field": "answers"}
ANSWER = {"text": "Rouen", "answer_start": 10}


def document(*questions: dict[str, Any]) -> dict[str, Any]:
    return {"version": "v2.0", "data": [{"paragraphs": [{"context": "They took Rouen.", "qas": list(questions)}]}]}


def written(folder: Path, content: object) -> Path:
    path = folder / "dev.json"
    path.write_text(json.dumps(content))
    return path


def test_questions_come_with_context_and_answers(tmp_path: Path) -> None:
    path = written(tmp_path, document({"question": "What?", "id": "1", "answers": [ANSWER, ANSWER]}))
    (record,) = read_squad(path, SQUAD)
    assert record.values == {
        "question": "What?",
        "context": "They took Rouen.",
        "answers": {"text": ["Rouen", "Rouen"], "answer_start": [10, 10]},
    }
    assert record.place.endswith("data[0].paragraphs[0].qas[0]")


def test_an_impossible_question_has_no_answers(tmp_path: Path) -> None:
    asked = {"question": "Who?", "answers": [], "plausible_answers": [ANSWER], "is_impossible": True}
    (record,) = read_squad(written(tmp_path, document(asked)), SQUAD)
    assert record.values["answers"] == {"text": [], "answer_start": []}


@pytest.mark.parametrize(
    ("content", "place"),
    [
        ([1], 'dev.json: expected "data"'),
        ({"data": [{"title": "x"}]}, r'data\[0\]: expected "paragraphs"'),
        (document({"answers": []}), r'qas\[0\]: expected "question"'),
        (document({"question": "Q", "answers": [{"text": "x"}]}), r'qas\[0\].answers: expected "answer_start"'),
    ],
)
def test_a_malformed_file_is_reported_with_the_place(tmp_path: Path, content: object, place: str) -> None:
    with pytest.raises(DataError, match=place) as caught:
        list(read_squad(written(tmp_path, content), SQUAD))
    assert "`" not in str(caught.value), "the command line reads back-quoted names as knobs"


@pytest.mark.parametrize(
    ("paragraph", "given", "do"),
    [
        ({"context": "c"}, "keys: context", "correct the file"),
        ({"context": "c", "qa": []}, "keys: context, qa", 'rename "qa" to "qas" in the file'),
        ({"context": "c", "QAs": []}, "keys: context, QAs", 'rename "QAs" to "qas" in the file'),
        ({"Context": "c", "qas": []}, "keys: Context, qas", 'rename "Context" to "context"'),
        ({"context": "c", "qas": {"a": 1}}, "\"qas\": {'a': 1}", "correct the file"),
        ({"context": "c", "qas": ["What?"]}, "str: What", "correct the file"),
        ({"context": "c", "qas": [{"question": "Q", "answer": []}]}, "keys: question, answer", 'rename "answer"'),
        (["c"], "list: ", "correct the file"),
    ],
)
def test_a_wrong_key_is_reported_with_the_likely_one(tmp_path: Path, paragraph: object, given: str, do: str) -> None:
    path = written(tmp_path, {"data": [{"paragraphs": [{"context": "c", "qas": []}, paragraph]}]})
    with pytest.raises(DataError, match=rf"dev\.json, data\[0\]\.paragraphs\[1\](?s:.*){given}(?s:.*){do}"):
        list(read_squad(path, SQUAD))


def test_invalid_json_is_refused(tmp_path: Path) -> None:
    (tmp_path / "dev.json").write_text('{"data": [')
    with pytest.raises(DataError, match="is not JSON"):
        list(read_squad(tmp_path / "dev.json", SQUAD))


COLUMNS = {"tokens_field": "words", "tags_field": "tags"}
Sentences = list[tuple[list[str], list[str]]]


def tagged(folder: Path, text: str, token: int = 0, tag: int = -1, suffix: str = ".conll") -> Sentences:
    path = folder / f"data{suffix}"
    path.write_bytes(text.encode())
    records = read_records(path, COLUMNS, tag_readers(token, tag))
    return [(record.strings("words"), record.strings("tags")) for record in records]


@pytest.mark.parametrize(
    ("text", "where", "expected"),
    [
        ("A\tO\nb\tB-x\n\nc\tO\n\t\nd\tO\n \t \n\n\ne\tO", {}, ["A b/O B-x", "c/O", "d/O", "e/O"]),
        ("APC2\tNN\tO\tB-Gene\r\n", {}, ["APC2/B-Gene"]),
        ("U.N. NNP I-NP I-ORG\n", {}, ["U.N./I-ORG"]),
        ("1\tword\tO\tB-x\tjunk\n", {"token": 1, "tag": 3}, ["word/B-x"]),
        ("1\tword\tO\tB-x\tjunk\n", {"token": -4, "tag": -2}, ["word/B-x"]),
        ("-DOCSTART- -X- -X- O\n\n# id 4\n# O\n# O\nx B-y\n", {}, ["# # x/O O B-y"]),
        *(("a\tO\n", {"suffix": suffix}, ["a/O"]) for suffix in (".txt", ".tsv", ".iob", ".bio")),
    ],
)
def test_sentences_are_read_from_columns(tmp_path: Path, text: str, where: dict[str, Any], expected: list[str]) -> None:
    found = tagged(tmp_path, text, **where)
    assert [f"{' '.join(words)}/{' '.join(tags)}" for words, tags in found] == expected


@pytest.mark.parametrize(
    ("line", "where", "problem"),
    [
        ("lonely", {}, "line 3: fewer than 2 columns"),
        ("word\tNNP", {}, "line 3: NNP"),
        ("\tO\tO", {}, "line 3: a tag without a word"),
        ("c\tO", {"token": 2}, "token_column"),
    ],
)
def test_a_malformed_line_is_named(tmp_path: Path, line: str, where: dict[str, int], problem: str) -> None:
    with pytest.raises(DataError, match=problem):
        tagged(tmp_path, f"a\tO\nb\tO\n{line}\n", **where)
