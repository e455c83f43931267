"""Claim: the file or folder of a text gives its label, as in published corpora, and unusable input is named."""

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from clozeline.params.reading import read_params
from clozeline.params.tasks import ClassificationParams, whole_task
from clozeline.system.errors import DataError
from clozeline.tasks.classification.data import Selection, read_selection
from clozeline.tasks.files import read_records
from clozeline.tasks.formats import label_readers
from clozeline.tasks.task import TaskInputs
from clozeline.tokenizing.tokenizer.folder import OpenTokenizer

DEFAULTS = read_params(Path(__file__).parents[3] / "params.yaml").finetune_defaults
FIELDS = {"text_field": "body", "label_field": "topic"}
FILES = {"good": "some.pos", "bad": "some.neg"}


def read(path: Path, label_files: Mapping[str, str] | None = None) -> list[tuple[str, str]]:
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


def test_each_line_of_a_label_file_is_a_text(sentences: Path) -> None:
    assert read(sentences, FILES) == [
        ("a fine film .", "good"),
        ("größe", "good"),
        ("a dull film", "bad"),
        ("no end of it", "bad"),
    ]


def test_a_text_is_identified_by_its_file_and_line(sentences: Path) -> None:
    places = [record.place for record in read_records(sentences, FIELDS, label_readers(FILES))]
    assert places[:2] == [f"{sentences / 'some.pos'}, line 1", f"{sentences / 'some.pos'}, line 3"]


def test_each_file_of_a_label_folder_is_a_text(reviews: Path) -> None:
    assert read(reviews) == [
        ("dull\n\nand long", "neg"),
        ("fine", "pos"),
        ("good", "pos"),
        ("so so", "unsup"),
    ]


def test_only_the_named_label_folders_are_read(reviews: Path) -> None:
    assert read(reviews, {"1": "pos", "0": "neg"}) == [("fine", "1"), ("good", "1"), ("dull\n\nand long", "0")]


def test_json_lines_in_a_txt_file_are_recognized(tmp_path: Path) -> None:
    (tmp_path / "dev.txt").write_text('\n{"body": "a", "topic": "x", "metadata": {}}\n')
    assert read(tmp_path / "dev.txt") == [("a", "x")]


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
        read(sentences / data, label_files)
    assert problem in caught.value.problem
    assert given in str(caught.value)


def test_label_files_refuse_a_second_field(reviews: Path) -> None:
    with pytest.raises(DataError, match="no field `second`"):
        list(read_records(reviews, {**FIELDS, "second_field": "second"}, label_readers(None)))


def selected(data: Path, encoder: Path, **changes: object) -> Selection:
    task = {"kind": "classification", "data": str(data), **changes}
    params = ClassificationParams.model_validate(whole_task(task, DEFAULTS))
    inputs = TaskInputs(params, 1, encoder, data, Path("not read"))
    return read_selection(inputs, params, OpenTokenizer.open(encoder))


def test_files_folders_and_a_table_give_the_same_task(small_encoder: Path, tmp_path: Path) -> None:
    texts = {label: [f"{label} text {number}" for number in range(40)] for label in ("good", "bad")}
    records = [{"text": text, "label": label} for label in texts for text in texts[label]]
    (tmp_path / "table.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    for label, own in texts.items():
        (tmp_path / f"some.{label}").write_text("\n".join(own))
        (tmp_path / "folders" / label).mkdir(parents=True)
        for number, text in enumerate(own):
            (tmp_path / "folders" / label / f"{number}.txt").write_text(f"{text}\n")
    expected = selected(tmp_path / "table.jsonl", small_encoder)
    assert expected.count.num_used == 80
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
