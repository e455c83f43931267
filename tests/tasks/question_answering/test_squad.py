"""Claim: SQuAD files of versions 1.1 and 2.0 are read; an error names malformed data and its location."""

import json
from pathlib import Path
from typing import Any

import pytest

from clozeline.system.errors import DataError
from clozeline.tasks.formats import read_squad

FIELDS = {"question_field": "question", "context_field": "context", "answers_field": "answers"}
ANSWER = {"text": "Rouen", "answer_start": 10}


def document(*questions: dict[str, Any]) -> dict[str, Any]:
    return {"version": "v2.0", "data": [{"paragraphs": [{"context": "They took Rouen.", "qas": list(questions)}]}]}


def written(folder: Path, content: object) -> Path:
    path = folder / "dev.json"
    path.write_text(json.dumps(content))
    return path


def test_questions_come_with_context_and_answers(tmp_path: Path) -> None:
    path = written(tmp_path, document({"question": "What?", "id": "1", "answers": [ANSWER, ANSWER]}))
    (record,) = read_squad(path, FIELDS)
    assert record.values == {
        "question": "What?",
        "context": "They took Rouen.",
        "answers": {"text": ["Rouen", "Rouen"], "answer_start": [10, 10]},
    }
    assert record.place.endswith("data[0].paragraphs[0].qas[0]")


def test_an_impossible_question_has_no_answers(tmp_path: Path) -> None:
    asked = {"question": "Who?", "answers": [], "plausible_answers": [ANSWER], "is_impossible": True}
    (record,) = read_squad(written(tmp_path, document(asked)), FIELDS)
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
        list(read_squad(written(tmp_path, content), FIELDS))
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
        list(read_squad(path, FIELDS))


def test_invalid_json_is_refused(tmp_path: Path) -> None:
    (tmp_path / "dev.json").write_text('{"data": [')
    with pytest.raises(DataError, match="is not JSON"):
        list(read_squad(tmp_path / "dev.json", FIELDS))
