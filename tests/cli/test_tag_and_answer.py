"""`clozeline tag` and `clozeline answer` print entities and answers for people and programs, and helpful errors."""

import json
import os
import pty
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import get_args, get_type_hints

import pytest
from typer.testing import CliRunner, Result

from clozeline.cli import app
from clozeline.cli.ask import tag
from clozeline.inference.answerer import Answerer
from clozeline.inference.package import load
from clozeline.inference.tagger import Aggregation, Tagger
from clozeline.system.errors import ClozelineError
from tests.make.packages import write_answerer, write_encoder, write_tagger

CLOZELINE = [sys.executable, "-m", "clozeline"]
TEXT = "open the lists of a file"
QUESTION, CONTEXT = "open", "the list of a file, and é"


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("project")
    write_encoder(folder / "dist" / "encoder")
    write_tagger(folder / "dist" / "names")
    write_answerer(folder / "dist" / "reader")
    write_answerer(folder / "others" / "learned", no_answer_margin=-100.0)
    (folder / "context.txt").write_text(CONTEXT, encoding="utf-8")
    (folder / "latin.txt").write_bytes(b"fine\nM\xfcnchen\n")
    (folder / "blank.txt").write_text(" \n", encoding="utf-8")
    return folder


@pytest.fixture(autouse=True)
def _inside(monkeypatch: pytest.MonkeyPatch, project: Path) -> None:
    monkeypatch.chdir(project)


def ask(*arguments: str, given: bytes = b"") -> Result:
    return CliRunner().invoke(app, arguments, input=given)


def lines_of(*arguments: str, given: bytes = b"") -> list[list[str]]:
    done = ask(*arguments, given=given)
    assert done.exit_code == 0, done.exception
    return [line.split("\t") for line in done.stdout.splitlines()]


def records_of(*arguments: str, given: bytes = b"") -> list[dict[str, object]]:
    done = ask(*arguments, "--json", given=given)
    assert done.exit_code == 0, done.exception
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.fixture(scope="module")
def tagger(project: Path) -> Tagger:
    model = load(project / "dist" / "names")
    assert isinstance(model, Tagger)
    return model


@pytest.fixture(scope="module")
def answerer(project: Path) -> Answerer:
    model = load(project / "dist" / "reader")
    assert isinstance(model, Answerer)
    return model


def test_tag_writes_a_line_for_each_entity_with_its_place(tagger: Tagger) -> None:
    (expected,) = tagger.tag([TEXT], strategy="first")
    lines = lines_of("tag", TEXT)
    assert len(lines) == len(expected) > 0
    assert [(line[0], line[2], int(line[4]), int(line[5])) for line in lines] == [
        (TEXT, one.entity_group, one.start, one.end) for one in expected
    ]
    assert [line[1] for line in lines] == [TEXT[one.start : one.end] for one in expected]
    assert [float(line[3]) for line in lines] == pytest.approx([one.score for one in expected], abs=1e-4)


def test_every_aggregation_can_be_requested(tagger: Tagger) -> None:
    option = get_type_hints(tag)["aggregation"]
    assert get_args(option) == get_args(Aggregation)
    for strategy in get_args(Aggregation):
        (record,) = records_of("tag", TEXT, "--aggregation", strategy)
        (expected,) = tagger.tag([TEXT], strategy=strategy)
        assert record == {"text": TEXT, "entities": [asdict(one) for one in expected]}


def test_each_line_of_standard_input_is_tagged_or_answered() -> None:
    tagged = records_of("tag", "-", given=f"{TEXT}\n\n é \n".encode())
    assert [record["text"] for record in tagged] == [TEXT, "é"]
    asked = records_of("answer", "-", "--context", CONTEXT, given=b"open\nreturn the list\n")
    assert [record["question"] for record in asked] == ["open", "return the list"]
    assert [len(record["answers"]) for record in asked] == [3, 3]


def test_answers_are_spans_of_the_text_best_first(answerer: Answerer) -> None:
    (expected,) = answerer.ask([(QUESTION, CONTEXT)], top_k=3)
    lines = lines_of("answer", QUESTION, "--context", CONTEXT)
    assert [line[:3] for line in lines] == [
        [QUESTION, str(rank), one.answer] for rank, one in enumerate(expected, start=1)
    ]
    assert [CONTEXT[int(line[4]) : int(line[5])] for line in lines] == [line[2] for line in lines]
    (only,) = lines_of("answer", QUESTION, "--context", CONTEXT, "--top-k", "1", "--max-tokens", "1")
    assert len(only[2].split()) == 1


def test_the_text_is_the_same_from_a_file_and_from_standard_input() -> None:
    written = lines_of("answer", QUESTION, "return", "--context", CONTEXT)
    assert lines_of("answer", QUESTION, "return", "--file", "context.txt") == written
    assert lines_of("answer", QUESTION, "return", "--file", "-", given=CONTEXT.encode()) == written
    assert {line[0] for line in written} == {QUESTION, "return"}


def test_a_model_trained_with_unanswerable_questions_gives_no_answer_unless_one_is_required() -> None:
    asked = ("answer", QUESTION, "--context", CONTEXT, "--top-k", "1")
    learned = (*asked, "--model", "others/learned")
    (with_none,), (without,) = lines_of(*learned), lines_of(*learned, "--always-answer")
    assert (with_none[2], without[2] != "") == ("", True)
    assert lines_of(*asked)[0] == without
    (records,) = records_of("answer", QUESTION, "--context", CONTEXT, "--no-answer", "--top-k", "50")
    assert "" in [one["answer"] for one in records["answers"]]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["tag", TEXT], ["entity", "type", "probability"]),
        (["answer", QUESTION, "--context", f"the\nlist\n{CONTEXT}{' of a file' * 40}"], ["answer", "probability", "…"]),
    ],
)
def test_a_terminal_gets_a_table_and_the_marked_text(project: Path, arguments: list[str], told: list[str]) -> None:
    leader, follower = pty.openpty()
    environment = {name: value for name, value in os.environ.items() if name != "NO_COLOR"} | {"TERM": "xterm"}
    command = [*CLOZELINE, *arguments]
    subprocess.run(command, cwd=project, stdout=follower, stdin=follower, env=environment, check=True)
    shown = os.read(leader, 65_536).decode()
    os.close(follower)
    os.close(leader)
    assert all(words in shown for words in told), shown
    assert "\x1b[1;3" in shown  # bold and coloured


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (["tag", "a", "--model", "dist/encoder"], 2, ["dist/encoder is a model for another task", "tag taggers"]),
        (["answer", "a", "--context", "b", "--model", "dist/names"], 2, ["dist/names is a model for another task"]),
        (["answer", "a"], 2, ["exactly one text", "neither --context nor --file"]),
        (["answer", "a", "--context", "b", "--file", "context.txt"], 2, ["both --context and --file"]),
        (["answer", "-", "--file", "-"], 2, ["standard input cannot be both"]),
        (["answer", "a", "--file", "nothing.txt"], 3, ["nothing.txt cannot be read", "No such file"]),
        (["answer", "a", "--file", "dist"], 3, ["dist cannot be read"]),
        (["answer", "a", "--file", "latin.txt"], 3, ["line 2 of latin.txt is not UTF-8", "iconv"]),
        (["answer", "a", "--file", "blank.txt"], 3, ["the text to answer from is empty", "blank.txt"]),
        (["answer", "a", "--context", ""], 3, ["the text to answer from is empty"]),
    ],
)
def test_unusable_arguments_are_refused_with_advice(arguments: list[str], code: int, told: list[str]) -> None:
    done = ask(*arguments)
    assert isinstance(done.exception, ClozelineError), done.exception
    assert (done.exception.exit_code, done.stdout) == (code, "")
    assert all(words in str(done.exception) for words in ["given:", "expected:", "do:", *told]), done.exception


def test_without_a_model_the_command_that_exports_one_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = ask("tag", "a")
    assert "`export.models` in params.yaml" in str(done.exception)


@pytest.mark.parametrize("verb", ["tag", "answer"])
def test_help_teaches_by_examples(verb: str) -> None:
    done = ask(verb, "--help")
    assert done.exit_code == 0
    assert f"clozeline {verb}" in done.stdout.split("Examples:")[1]


def test_a_prediction_imports_no_training_and_no_serving_package(project: Path) -> None:
    heavy = ["torch", "transformers", "optimum", "mlflow", "prefect", "dvc", "pandas", "starlette", "uvicorn"]
    script = (
        "import sys; from clozeline.cli import app; sys.argv = ['clozeline', 'answer', 'a', '--context', 'b']\n"
        "try: app()\n"
        f"finally: sys.stderr.write('LOADED %s' % (set({heavy}) & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=project, capture_output=True, text=True, check=True)
    assert done.stderr == "LOADED set()"
