"""Verbs that ask a model print tables for people, lines or JSON for programs; an error says what to type."""

import json
import os
import pty
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args, get_type_hints

import orjson
import pytest
from typer.testing import CliRunner, Result

from clozeline.cli import app
from clozeline.cli.ask import tag
from clozeline.inference.classifier import Aggregation
from clozeline.inference.completer import Decoding
from clozeline.inference.fields import AnswerSearch
from clozeline.inference.package import load
from clozeline.serving.zero_shot import choosing
from clozeline.system.errors import ClozelineError
from tests.make import packages

TEXT, MASKS = "open the lists of a file", "the [MASK] of [MASK]"
QUESTION, CONTEXT = "open", "the list of a file, and é"
IN_CONTEXT = ("answer", QUESTION, "--context", CONTEXT)
LABELS, JOINED = ["list", "return file", "é"], "list, return file,é"
ENCODER, CAUSAL, NLI = "dist/encoder", "causal/dist/encoder", "others/nli"


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with a model for every verb."""
    folder = tmp_path_factory.mktemp("project")
    packages.write_encoder(folder / ENCODER)
    packages.write_classifier(folder / "dist/library")
    packages.write_tagger(folder / "dist/names")
    packages.write_answerer(folder / "dist/reader")
    packages.write_answerer(folder / "others/learned", no_answer_margin=-100.0)
    packages.write_ranker(folder / "others/ranker")
    packages.write_completer(folder / CAUSAL)
    packages.write_entailer(folder / NLI)
    (folder / "context.txt").write_text(CONTEXT, encoding="utf-8")
    (folder / "latin.txt").write_bytes(b"fine\nM\xfcnchen\n")
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
    return [json.loads("\t".join(line)) for line in lines_of(*arguments, "--json", given=given)]


def chosen(**options: Any) -> Callable[[Any], Any]:
    return lambda it: [it.converse(choosing(it, TEXT, LABELS, **options))]


DRAWN = "--model causal/dist/encoder --max-tokens 5 --temperature 0.9 --top-p 0.9 --seed 7 --stop of".split()  # noqa: SIM905
RANKER, TOP_TWO, TARGETS = "others/ranker", ["--top-k", "2"], ["list", "file"]
ONE_TOKEN = AnswerSearch(handle_impossible_answer=True, max_answer_len=1)
CHOOSE = ["choose", TEXT, "--labels", JOINED]
# Arguments, model, and what it answers in Python.
ASKED: list[tuple[list[str], str, Callable[[Any], Any]]] = [
    (["fill", MASKS, *TOP_TWO], ENCODER, lambda it: it.fill([MASKS], top_k=2)),
    (["fill", MASKS, "--targets", ",".join(TARGETS)], ENCODER, lambda it: it.fill([MASKS], targets=TARGETS)),
    (["embed", TEXT, "--model", CAUSAL], CAUSAL, lambda it: it.embed([TEXT])),
    (["embed", "a " * 99, "--truncate"], ENCODER, lambda it: it.embed(["a " * 62])),
    (["classify", TEXT, *TOP_TWO], "dist/library", lambda it: it.classify([TEXT], top_k=2)),
    (["classify", TEXT, "--with", "é", "--model", RANKER], RANKER, lambda it: it.classify([(TEXT, "é")])),
    (["complete", TEXT, *DRAWN], CAUSAL, lambda it: it.complete([TEXT], Decoding(5, 0.9, 0.9, 7, ("of",)))),
    *(
        (["tag", TEXT, "--aggregation", name], "dist/names", lambda it, name=name: it.tag([TEXT], strategy=name))
        for name in get_args(Aggregation)
    ),
    (
        [*IN_CONTEXT, "--no-answer", "--max-tokens", "1", *TOP_TWO],
        "dist/reader",
        lambda it: it.ask([(QUESTION, CONTEXT)], top_k=2, search=ONE_TOKEN),
    ),
    (CHOOSE, ENCODER, chosen()),
    ([*CHOOSE, "--template", "of {}"], ENCODER, chosen(template="of {}")),
    ([*CHOOSE, "--model", NLI, "--multi-label"], NLI, chosen(multi_label=True)),
]
KEYS = {"fill": "masks", "embed": "embedding", "complete": "completion", "tag": "entities", "answer": "answers"}


@pytest.mark.parametrize(("arguments", "folder", "expected"), ASKED)
def test_each_verb_gives_the_answers_of_the_model_with_its_options(
    arguments: list[str], folder: str, expected: Callable[[Any], Any]
) -> None:
    verb, text, *_ = arguments
    (answer,) = json.loads(orjson.dumps(expected(load(Path(folder))), option=orjson.OPT_SERIALIZE_NUMPY))
    asked = "question" if verb == "answer" else "text"
    assert records_of(*arguments) == [{asked: text, KEYS.get(verb, "labels"): answer}]
    assert answer


def test_fill_and_classify_write_a_line_for_each_candidate_best_first() -> None:
    lines = lines_of("fill", MASKS, "--top-k", "2")
    assert [line[:3] for line in lines] == [[MASKS, mask, rank] for mask in "12" for rank in "12"]
    assert float(lines[0][4]) >= float(lines[1][4])
    assert "[MASK]" in lines[0][5]
    assert lines[0][5] != MASKS
    lines = lines_of("choose", TEXT, "a\tb", "--labels", JOINED)
    assert [line[:2] for line in lines] == [[text, rank] for text in (TEXT, r"a\tb") for rank in "123"]
    assert {line[2] for line in lines} == set(LABELS)
    assert sum(float(line[3]) for line in lines[:3]) == pytest.approx(1, abs=1e-4)


def test_complete_writes_the_continuation_and_the_finish_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """A causal encoder is the default model, also to embed."""
    monkeypatch.chdir("causal")
    model: Any = load(Path(ENCODER))
    texts = ["return the list", "open"]
    expected = [[text, one.text, one.finish_reason] for text, one in zip(texts, model.complete(texts), strict=True)]
    assert lines_of("complete", *texts) == expected
    assert [len(line) for line in lines_of("embed", *texts)] == [1 + packages.HIDDEN_SIZE] * 2


def test_tag_and_answer_write_passages_with_their_place() -> None:
    model: Any = load(Path("dist/names"))
    (found,) = model.tag([TEXT], strategy="first")
    expected = [
        [TEXT, TEXT[one.start : one.end], one.entity_group, f"{one.score:.6g}", str(one.start), str(one.end)]
        for one in found
    ]
    assert lines_of("tag", TEXT) == expected != []
    assert get_args(get_type_hints(tag)["aggregation"]) == get_args(Aggregation)
    lines = lines_of(*IN_CONTEXT)
    assert [line[:2] for line in lines] == [[QUESTION, rank] for rank in "123"]
    assert [CONTEXT[int(line[4]) : int(line[5])] for line in lines] == [line[2] for line in lines]


def test_the_text_to_answer_from_is_the_same_from_a_file_and_from_standard_input() -> None:
    written = lines_of("answer", QUESTION, "return", "--context", CONTEXT)
    assert lines_of("answer", QUESTION, "return", "--file", "context.txt") == written
    assert lines_of("answer", QUESTION, "return", "--file", "-", given=CONTEXT) == written
    assert {line[0] for line in written} == {QUESTION, "return"}
    learned = (*IN_CONTEXT, "--top-k", "1", "--model", "others/learned")  # with unanswerable questions
    (with_none,), (without,) = lines_of(*learned), lines_of(*learned, "--always-answer")
    assert (with_none[2], without[2] != "") == ("", True)
    assert lines_of(*IN_CONTEXT, "--top-k", "1")[0] == without


def test_lines_of_standard_input_are_answered_in_their_order_without_blank_ones() -> None:
    texts = [f"{'a ' * (number % 7)}b" for number in range(2500)]
    lines = lines_of("classify", "-", "--top-k", "1", given="\r\n\n ".join(texts))
    assert [line[0] for line in lines] == texts
    answered = records_of("answer", "--context", CONTEXT, "-", given="é\n\na\n")
    assert [record["question"] for record in answered] == ["é", "a"]
    by_option = lines_of("classify", "open", "a", "--with", "the file", "--model", RANKER)
    by_tab = lines_of("classify", "-", "--model", RANKER, given="open\tthe file\na\tthe file\n")
    assert [line[1:] for line in by_tab] == [line[1:] for line in by_option]
    assert [line[0] for line in by_tab] == [r"open\tthe file", r"a\tthe file"]


def test_a_terminal_gets_a_table_and_the_marked_text() -> None:
    arguments = ["answer", QUESTION, "--context", f"the\nlist\n{CONTEXT}{' of a file' * 40}"]
    leader, follower = pty.openpty()
    environment = {name: value for name, value in os.environ.items() if name != "NO_COLOR"} | {"TERM": "xterm"}
    command = [sys.executable, "-m", "clozeline", *arguments]
    subprocess.run(command, stdout=follower, stdin=follower, env=environment, check=True)
    shown = os.read(leader, 65_536).decode()
    for end in (follower, leader):
        os.close(end)
    assert [words for words in ("probability", "…", "\x1b[1;3") if words not in shown] == []


def test_what_cannot_be_asked_is_refused_with_advice() -> None:
    for arguments, code, told in (
        (["fill", "no mask"], 3, ["text 0 has no mask", "write [MASK]"]),
        (["fill", "[MASK]", "--targets", "lists"], 3, ["a target is not one token", "'lists'"]),
        (["fill", "[MASK]", "--model", "causal/dist/encoder"], 2, ["text-generation", "fill takes masked encoders"]),
        (["embed", "a " * 100], 3, ["text 0 is too long", "102 tokens", "64 tokens"]),
        (["embed", "a", "--model", "dist/nothing"], 4, ["dist/nothing", "dvc repro"]),
        (["embed", "-"], 3, ["line 2 of standard input", "iconv"]),
        (["complete", "a", "--model", "causal/dist/encoder", "--top-p", "0"], 3, ["`top_p`"]),
        (["classify", "a", "--model", "others/ranker"], 3, ["text 0 has no second text", "--with"]),
        (["classify", "a", "--with", "b"], 2, ["leave --with out"]),
        (["answer", "a"], 2, ["neither --context nor --file"]),
        (["answer", "a", "--context", "b", "--file", "context.txt"], 2, ["both --context and --file"]),
        (["answer", "-", "--file", "-"], 2, ["standard input"]),
        (["answer", "a", "--file", "nothing.txt"], 3, ["nothing.txt", "No such file"]),
        (["answer", "a", "--file", "latin.txt"], 3, ["line 2 of latin.txt", "iconv"]),
        (["answer", "a", "--context", ""], 3, ["--context"]),
        (["choose", "a", "-l", "lists"], 3, ["label 'lists'", "one token each"]),
        (["choose", "a", "-l", "list,"], 2, ["--labels", "'list,'"]),
        (["choose", "a", "-l", "list,list"], 2, ["--labels", "each once"]),
        (["choose", "a", "-l", JOINED, "--model", "dist/library"], 2, ["dist/library", "clozeline classify"]),
        (["choose", "a", "-l", JOINED, "--template", "none"], 3, ["hypothesis_template"]),
        (["choose", "a", "-l", JOINED, "--multi-label"], 2, ["leave --multi-label out"]),
    ):
        done = CliRunner().invoke(app, arguments, input=b"fine\nM\xfcnchen\n")
        assert isinstance(done.exception, ClozelineError), done.exception
        assert done.exception.exit_code == code
        assert [words for words in told if words not in str(done.exception)] == []
        assert done.stdout == ""


def test_without_a_model_the_command_that_makes_one_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for verb, told in (("fill", "run `make run`"), ("tag", "`export.models` in params.yaml")):
        error = ask(verb, "the [MASK]").exception
        assert isinstance(error, ClozelineError)
        assert (error.exit_code, told in str(error)) == (4, True)


def test_a_prediction_imports_no_training_and_no_serving_package() -> None:
    heavy = ["torch", "transformers", "optimum", "mlflow", "prefect", "dvc", "pandas", "starlette", "uvicorn"]
    script = (
        f"import sys; from clozeline.cli import app; sys.argv = {['clozeline', *IN_CONTEXT]}\n"
        "try: app()\n"
        f"finally: sys.stderr.write('LOADED %s' % (set({heavy}) & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stderr == "LOADED set()"
