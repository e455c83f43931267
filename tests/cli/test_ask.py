"""Verbs that ask a model print tables for people, lines or JSON for programs; an error says what to type."""

import json
import math
import os
import pty
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
from typer.testing import CliRunner, Result

from clozeline.cli import app
from clozeline.cli.ask import tag
from clozeline.inference.answerer import Answerer
from clozeline.inference.classifier import Aggregation, Classifier, Tagger
from clozeline.inference.completer import Completer, Decoding
from clozeline.inference.package import load
from clozeline.serving.zero_shot import choosing
from clozeline.system.errors import ClozelineError
from tests.make import packages

TEXT, OTHER = "open the lists of a file", "return a list of é"
QUESTION, CONTEXT = "open", "the list of a file, and é"
IN_CONTEXT = ("answer", QUESTION, "--context", CONTEXT)
LABELS, JOINED = ["list", "return file", "é"], "list, return file,é"


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with a model for every verb."""
    folder = tmp_path_factory.mktemp("project")
    packages.write_encoder(folder / "dist/encoder")
    packages.write_classifier(folder / "dist/library")
    packages.write_tagger(folder / "dist/names")
    packages.write_answerer(folder / "dist/reader")
    packages.write_answerer(folder / "others/learned", no_answer_margin=-100.0)
    packages.write_ranker(folder / "others/ranker")
    packages.write_completer(folder / "causal/dist/encoder")
    graph, names = packages.classifier_graph(), ("contradiction", "neutral", "entailment")
    packages.write_package(folder / "others/nli", "text-classification", graph, labels=names, reads_pairs=True)
    (folder / "context.txt").write_text(CONTEXT, encoding="utf-8")
    (folder / "latin.txt").write_bytes(b"fine\nM\xfcnchen\n")
    (folder / "blank.txt").write_text(" \n", encoding="utf-8")
    return folder


@pytest.fixture(autouse=True)
def _inside(monkeypatch: pytest.MonkeyPatch, project: Path) -> None:
    monkeypatch.chdir(project)


def ask(*arguments: str, given: str = "") -> Result:
    return CliRunner().invoke(app, arguments, input=given.encode())


def lines_of(*arguments: str, given: str = "") -> list[list[str]]:
    done = ask(*arguments, given=given)
    assert done.exit_code == 0, done.exception
    return [line.split("\t") for line in done.stdout.splitlines()]


def records_of(*arguments: str, given: str = "") -> list[dict[str, Any]]:
    done = ask(*arguments, "--json", given=given)
    assert done.exit_code == 0, done.exception
    return [json.loads(line) for line in done.stdout.splitlines()]


def scores_of(*arguments: str) -> dict[str, dict[str, float]]:
    """Return the score of each label by text."""
    records = records_of("choose", *arguments)
    return {record["text"]: {one["label"]: one["score"] for one in record["labels"]} for record in records}


def test_fill_writes_a_line_for_each_candidate_of_each_mask() -> None:
    lines = lines_of("fill", "the [MASK] of [MASK]", "--top-k", "2")
    assert [line[:3] for line in lines] == [["the [MASK] of [MASK]", mask, rank] for mask in "12" for rank in "12"]
    assert float(lines[0][4]) >= float(lines[1][4])
    assert "[MASK]" in lines[0][5]
    assert lines[0][5] != "the [MASK] of [MASK]"
    among_targets = lines_of("fill", "the [MASK]", "--targets", "list,file")
    assert {line[3] for line in among_targets} == {"list", "file"}
    assert sum(float(line[4]) for line in among_targets) == pytest.approx(1, rel=1e-4)


@pytest.mark.parametrize("folder", [".", "causal"])
def test_embed_writes_a_unit_vector_for_each_text(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A causal encoder embeds without being named."""
    monkeypatch.chdir(folder)
    lines = lines_of("embed", "open the file", "a\tb")
    assert [line[0] for line in lines] == ["open the file", r"a\tb"]
    assert [math.hypot(*map(float, line[1:])) for line in lines] == pytest.approx([1, 1], rel=1e-4)


def test_classify_writes_the_likeliest_labels() -> None:
    lines = lines_of("classify", "open the file", "--top-k", "2")
    assert [line[:2] for line in lines] == [["open the file", "1"], ["open the file", "2"]]
    assert float(lines[0][3]) > float(lines[1][3])


def test_a_pair_model_reads_each_text_with_a_second_text() -> None:
    ranker = load(Path("others/ranker"))
    assert isinstance(ranker, Classifier)
    expected = [scores[0].score for scores in ranker.classify([("open", "the file"), ("a", "the file")])]
    asked = ("--model", "others/ranker")
    by_option = lines_of("classify", "open", "a", "--with", "the file", *asked)
    by_tab = lines_of("classify", "-", *asked, given="open\tthe file\na\tthe file\n")
    assert [float(line[3]) for line in by_option] == pytest.approx(expected, abs=1e-5)
    assert [line[1:] for line in by_tab] == [line[1:] for line in by_option]
    assert [line[0] for line in by_tab] == [r"open\tthe file", r"a\tthe file"]


def test_complete_writes_the_continuation_and_the_finish_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("causal")
    completer = load(Path("dist/encoder"))
    assert isinstance(completer, Completer)
    texts = ["return the list", "open"]
    expected = [[text, one.text, one.finish_reason] for text, one in zip(texts, completer.complete(texts), strict=True)]
    assert lines_of("complete", *texts) == expected
    options = "--max-tokens 5 --temperature 0.9 --top-p 0.9 --seed 7 --stop of"
    (record,) = records_of("complete", texts[0], *options.split())
    (drawn,) = completer.complete(texts[:1], Decoding(5, 0.9, 0.9, 7, ("of",)))
    assert (record["text"], record["completion"]["text"]) == (texts[0], drawn.text)
    assert record["completion"]["tokens"] == list(drawn.tokens)


def test_tag_writes_a_line_for_each_entity_with_its_place_by_any_aggregation() -> None:
    tagger = load(Path("dist/names"))
    assert isinstance(tagger, Tagger)
    (expected,) = tagger.tag([TEXT], strategy="first")
    lines = lines_of("tag", TEXT)
    assert [(line[0], line[1], line[2], int(line[4]), int(line[5])) for line in lines] == [
        (TEXT, TEXT[one.start : one.end], one.entity_group, one.start, one.end) for one in expected
    ]
    assert [float(line[3]) for line in lines] == pytest.approx([one.score for one in expected], abs=1e-4) != []
    assert get_args(get_type_hints(tag)["aggregation"]) == get_args(Aggregation)
    for strategy in get_args(Aggregation):
        (expected,) = tagger.tag([TEXT], strategy=strategy)
        (record,) = records_of("tag", TEXT, "--aggregation", strategy)
        assert record == {"text": TEXT, "entities": [asdict(one) for one in expected]}


def test_answers_are_spans_of_the_text_best_first() -> None:
    answerer = load(Path("dist/reader"))
    assert isinstance(answerer, Answerer)
    (expected,) = answerer.ask([(QUESTION, CONTEXT)], top_k=3)
    lines = lines_of(*IN_CONTEXT)
    assert [line[:3] for line in lines] == [
        [QUESTION, str(rank), one.answer] for rank, one in enumerate(expected, start=1)
    ]
    assert [CONTEXT[int(line[4]) : int(line[5])] for line in lines] == [line[2] for line in lines]
    (only,) = lines_of(*IN_CONTEXT, "--top-k", "1", "--max-tokens", "1")
    assert len(only[2].split()) == 1


def test_the_text_to_answer_from_is_the_same_from_a_file_and_from_standard_input() -> None:
    written = lines_of("answer", QUESTION, "return", "--context", CONTEXT)
    assert lines_of("answer", QUESTION, "return", "--file", "context.txt") == written
    assert lines_of("answer", QUESTION, "return", "--file", "-", given=CONTEXT) == written
    assert {line[0] for line in written} == {QUESTION, "return"}


def test_a_model_trained_with_unanswerable_questions_gives_no_answer_unless_one_is_required() -> None:
    learned = (*IN_CONTEXT, "--top-k", "1", "--model", "others/learned")
    (with_none,), (without,) = lines_of(*learned), lines_of(*learned, "--always-answer")
    assert (with_none[2], without[2] != "") == ("", True)
    assert lines_of(*IN_CONTEXT, "--top-k", "1")[0] == without
    (record,) = records_of(*IN_CONTEXT, "--no-answer", "--top-k", "50")
    assert "" in [one["answer"] for one in record["answers"]]


@pytest.mark.parametrize(
    ("arguments", "folder", "template"),
    [
        ((), "dist/encoder", "This text is about {}."),
        (("--template", "of {}"), "dist/encoder", "of {}"),
        (("--model", "others/nli"), "others/nli", "This text is about {}."),
    ],
)
def test_the_encoder_chooses_unless_another_model_is_named(
    arguments: tuple[str, ...], folder: str, template: str
) -> None:
    model = load(Path(folder))
    expected = {text: model.converse(choosing(model, text, LABELS, template=template)) for text in (TEXT, OTHER)}
    assert scores_of(TEXT, OTHER, "--labels", JOINED, *arguments) == {
        text: {one.label: pytest.approx(one.score) for one in scores} for text, scores in expected.items()
    }


def test_choose_writes_a_line_for_each_label_best_first() -> None:
    lines = lines_of("choose", TEXT, OTHER, "--labels", JOINED)
    assert [line[:2] for line in lines] == [[text, str(rank)] for text in (TEXT, OTHER) for rank in (1, 2, 3)]
    assert {line[2] for line in lines} == set(LABELS)
    scores = [float(line[3]) for line in lines[:3]]
    assert scores == sorted(scores, reverse=True)
    assert sum(scores) == pytest.approx(1, abs=1e-4)


def test_entailment_can_score_each_label_independently() -> None:
    (scores,) = scores_of(TEXT, "-l", JOINED, "--multi-label", "--model", "others/nli").values()
    assert sum(scores.values()) != pytest.approx(1, abs=1e-3)


@pytest.mark.parametrize(
    ("arguments", "keys"),
    [
        (["fill"], ("text", "masks")),
        (["embed"], ("text", "embedding")),
        (["classify"], ("text", "labels")),
        (["choose", "-l", JOINED], ("text", "labels")),
        (["tag"], ("text", "entities")),
        (["answer", "--context", CONTEXT], ("question", "answers")),
    ],
    ids=lambda value: value[0],
)
def test_each_line_of_standard_input_gets_a_json_object(arguments: list[str], keys: tuple[str, str]) -> None:
    records = records_of(*arguments, "-", given="é [MASK]\r\n\n  a [MASK]  \n")
    assert [(*record,) for record in records] == [keys] * 2
    assert [record[keys[0]] for record in records] == ["é [MASK]", "a [MASK]"]


def test_answers_keep_the_order_of_the_input_lines() -> None:
    texts = [f"{'a ' * (number % 7)}b" for number in range(2500)]
    lines = lines_of("classify", "-", "--top-k", "1", given="\n".join(texts))
    assert [line[0] for line in lines] == texts


def test_a_long_text_is_truncated_on_request() -> None:
    (line,) = lines_of("embed", "a " * 100, "--truncate")
    assert line[1:] == lines_of("embed", "a " * 62)[0][1:]
    assert len(scores_of("a " * 100, "-l", JOINED, "--truncate")) == 1


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["fill", "the [MASK]"], ["probability", "█"]),
        (["tag", TEXT], ["entity", "type", "probability", "\x1b[1;3"]),
        (
            ["answer", QUESTION, "--context", f"the\nlist\n{CONTEXT}{' of a file' * 40}"],
            ["answer", "probability", "…", "\x1b[1;3"],
        ),
    ],
    ids=["fill", "tag", "answer"],
)
def test_a_terminal_gets_a_table_and_the_marked_text(arguments: list[str], told: list[str]) -> None:
    leader, follower = pty.openpty()
    environment = {name: value for name, value in os.environ.items() if name != "NO_COLOR"} | {"TERM": "xterm"}
    command = [sys.executable, "-m", "clozeline", *arguments]
    subprocess.run(command, stdout=follower, stdin=follower, env=environment, check=True)
    shown = os.read(leader, 65_536).decode()
    os.close(follower)
    os.close(leader)
    assert [words for words in told if words not in shown] == []


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (["fill", "no mask"], 3, ["text 0 has no mask", "write [MASK]"]),
        (["fill", "[MASK]", "--targets", "lists"], 3, ["a target is not one token", "'lists'"]),
        (["fill", "[MASK]", "--model", "dist/library"], 2, ["dist/library", "classify"]),
        (["fill", "[MASK]", "--model", "causal/dist/encoder"], 2, ["text-generation", "fill takes masked encoders"]),
        (["embed", "a " * 100], 3, ["text 0 is too long", "102 tokens", "64 tokens"]),
        (["embed", "a", "--model", "dist/nothing"], 4, ["dist/nothing", "dvc repro"]),
        (["embed", "-"], 3, ["line 2 of standard input", "iconv"]),
        (["complete", "a"], 2, ["dist/encoder", "complete causal ones"]),
        (["complete", "a", "--model", "causal/dist/encoder", "--top-p", "0"], 3, ["`top_p`"]),
        (["complete", "a " * 99, "--model", "causal/dist/encoder"], 3, ["leaves no room", "`truncate`"]),
        (["classify", "a", "--model", "others/ranker"], 3, ["text 0 has no second text", "--with"]),
        (["classify", "a", "--with", "b"], 2, ["leave --with out"]),
        (["tag", "a", "--model", "dist/encoder"], 2, ["dist/encoder", "tag taggers"]),
        (["answer", "a", "--context", "b", "--model", "dist/names"], 2, ["dist/names"]),
        (["answer", "a"], 2, ["neither --context nor --file"]),
        (["answer", "a", "--context", "b", "--file", "context.txt"], 2, ["both --context and --file"]),
        (["answer", "-", "--file", "-"], 2, ["standard input"]),
        (["answer", "a", "--file", "nothing.txt"], 3, ["nothing.txt", "No such file"]),
        (["answer", "a", "--file", "dist"], 3, ["dist cannot be read"]),
        (["answer", "a", "--file", "latin.txt"], 3, ["line 2 of latin.txt", "iconv"]),
        (["answer", "a", "--file", "blank.txt"], 3, ["blank.txt"]),
        (["answer", "a", "--context", ""], 3, ["--context"]),
        (["choose", "a", "-l", "lists"], 3, ["label 'lists'", "one token each"]),
        (["choose", "a", "-l", "list,"], 2, ["--labels", "'list,'"]),
        (["choose", "a", "-l", "list,list"], 2, ["--labels", "each once"]),
        (["choose", "a", "-l", JOINED, "--template", "none"], 3, ["hypothesis_template"]),
        (["choose", "a", "-l", JOINED, "--multi-label"], 2, ["leave --multi-label out"]),
        (["choose", "a", "-l", JOINED, "--model", "dist/library"], 2, ["dist/library", "clozeline classify"]),
        (["choose", "a", "-l", JOINED, "--model", "dist/names"], 2, ["dist/names", "choose"]),
    ],
)
def test_what_cannot_be_asked_is_refused_with_advice(arguments: list[str], code: int, told: list[str]) -> None:
    done = CliRunner().invoke(app, arguments, input=b"fine\nM\xfcnchen\n")
    assert isinstance(done.exception, ClozelineError), done.exception
    assert done.exception.exit_code == code
    assert [words for words in told if words not in str(done.exception)] == []
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("arguments", "told"),
    [(["fill", "the [MASK]"], "run `make run`"), (["tag", "a"], "`export.models` in params.yaml")],
)
def test_without_a_model_the_command_that_makes_one_is_named(
    arguments: list[str], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    error = ask(*arguments).exception
    assert isinstance(error, ClozelineError)
    assert (error.exit_code, told in str(error)) == (4, True)


@pytest.mark.parametrize("verb", ["fill", "complete", "embed", "classify", "choose", "tag", "answer", "serve"])
def test_help_teaches_by_examples(verb: str) -> None:
    done = ask(verb, "--help")
    assert done.exit_code == 0
    assert f"clozeline {verb}" in done.stdout.split("Examples:")[1]


@pytest.mark.parametrize(
    "arguments", [["fill", "the [MASK]"], ["answer", "a", "--context", "b"]], ids=["fill", "answer"]
)
def test_a_prediction_imports_no_training_and_no_serving_package(arguments: list[str]) -> None:
    heavy = ["torch", "transformers", "optimum", "mlflow", "prefect", "dvc", "pandas", "starlette", "uvicorn"]
    script = (
        f"import sys; from clozeline.cli import app; sys.argv = {['clozeline', *arguments]}\n"
        "try: app()\n"
        f"finally: sys.stderr.write('LOADED %s' % (set({heavy}) & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stderr == "LOADED set()"
