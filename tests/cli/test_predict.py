"""Verbs that ask a model print tables for people or lines for programs; errors say what to type."""

import json
import math
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from clozeline.inference.classifier import Classifier
from clozeline.inference.completer import Completer, Decoding
from clozeline.inference.package import load
from tests.make.packages import write_classifier, write_completer, write_encoder, write_ranker

CLOZELINE = [sys.executable, "-m", "clozeline"]


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("project")
    write_encoder(folder / "dist" / "encoder")
    write_classifier(folder / "dist" / "library")
    write_ranker(folder / "others" / "ranker")
    write_completer(folder / "causal" / "dist" / "encoder")
    return folder


def ask(folder: Path, *arguments: str, given: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    return subprocess.run([*CLOZELINE, *arguments], cwd=folder, input=given, capture_output=True, check=False)


def lines_of(folder: Path, *arguments: str, given: bytes = b"") -> list[list[str]]:
    done = ask(folder, *arguments, given=given)
    assert done.returncode == 0, done.stderr
    return [line.split("\t") for line in done.stdout.decode().splitlines()]


def test_fill_writes_a_line_for_each_candidate_of_each_mask(project: Path) -> None:
    lines = lines_of(project, "fill", "the [MASK] of [MASK]", "--top-k", "2")
    assert [line[:3] for line in lines] == [["the [MASK] of [MASK]", mask, rank] for mask in "12" for rank in "12"]
    assert float(lines[0][4]) >= float(lines[1][4])
    assert "[MASK]" in lines[0][5]
    assert lines[0][5] != "the [MASK] of [MASK]"


def test_probabilities_are_normalized_over_the_targets(project: Path) -> None:
    lines = lines_of(project, "fill", "the [MASK]", "--targets", "list,file")
    assert {line[3] for line in lines} == {"list", "file"}
    assert math.isclose(sum(float(line[4]) for line in lines), 1, rel_tol=1e-4)


def test_embed_writes_a_unit_vector_for_each_text(project: Path) -> None:
    lines = lines_of(project, "embed", "open the file", "a\tb")
    assert [line[0] for line in lines] == ["open the file", r"a\tb"]
    for line in lines:
        assert math.isclose(math.hypot(*map(float, line[1:])), 1, rel_tol=1e-4)


def test_classify_writes_the_likeliest_labels(project: Path) -> None:
    lines = lines_of(project, "classify", "open the file", "--top-k", "2")
    assert [line[:2] for line in lines] == [["open the file", "1"], ["open the file", "2"]]
    assert float(lines[0][3]) > float(lines[1][3])


def test_a_pair_model_reads_each_text_with_a_second_text(project: Path) -> None:
    ranker = load(project / "others" / "ranker")
    assert isinstance(ranker, Classifier)
    expected = [scores[0].score for scores in ranker.classify([("open", "the file"), ("a", "the file")])]
    asked = ("--model", "others/ranker")
    by_option = lines_of(project, "classify", "open", "a", "--with", "the file", *asked)
    by_tab = lines_of(project, "classify", "-", *asked, given=b"open\tthe file\na\tthe file\n")
    assert [float(line[3]) for line in by_option] == pytest.approx(expected, abs=1e-5)
    assert [line[1:] for line in by_tab] == [line[1:] for line in by_option]
    assert [line[0] for line in by_tab] == [r"open\tthe file", r"a\tthe file"]


def test_complete_writes_the_continuation_and_the_finish_reason(project: Path) -> None:
    completer = load(project / "causal" / "dist" / "encoder")
    assert isinstance(completer, Completer)
    texts = ["return the list", "open"]
    (greedy, other), (drawn, _) = (
        completer.complete(texts),
        completer.complete(texts, Decoding(5, 0.9, 0.9, 7, ("of",))),
    )
    lines = lines_of(project / "causal", "complete", *texts)
    assert lines == [[text, one.text, one.finish_reason] for text, one in zip(texts, (greedy, other), strict=True)]
    options = "--max-tokens 5 --temperature 0.9 --top-p 0.9 --seed 7 --stop of --json"
    done = ask(project / "causal", "complete", texts[0], *options.split())
    record = json.loads(done.stdout)
    assert (record["text"], record["completion"]["text"]) == (texts[0], drawn.text)
    assert record["completion"]["tokens"] == list(drawn.tokens)


def test_a_causal_encoder_embeds_without_being_named(project: Path) -> None:
    (line,) = lines_of(project / "causal", "embed", "open the file")
    assert math.isclose(math.hypot(*map(float, line[1:])), 1, rel_tol=1e-4)


@pytest.mark.parametrize(("verb", "key"), [("fill", "masks"), ("embed", "embedding"), ("classify", "labels")])
def test_each_line_of_standard_input_is_a_text_and_gets_a_json_object(project: Path, verb: str, key: str) -> None:
    done = ask(project, verb, "-", "--json", given="é [MASK]\r\n\n  a [MASK]  \n".encode())
    records = [json.loads(line) for line in done.stdout.splitlines()]
    assert [record["text"] for record in records] == ["é [MASK]", "a [MASK]"]
    assert all(record[key] for record in records)


def test_answers_keep_the_order_of_the_input_lines(project: Path) -> None:
    texts = [f"{'a ' * (number % 7)}b" for number in range(2500)]
    lines = lines_of(project, "classify", "-", "--top-k", "1", given="\n".join(texts).encode())
    assert [line[0] for line in lines] == texts


def test_a_terminal_gets_a_table(project: Path) -> None:
    leader, follower = pty.openpty()
    subprocess.run([*CLOZELINE, "fill", "the [MASK]"], cwd=project, stdout=follower, stdin=follower, check=True)
    shown = os.read(leader, 65_536).decode()
    os.close(follower)
    os.close(leader)
    assert "probability" in shown
    assert "█" in shown


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (["fill", "no mask"], 3, ["text 0 has no mask", "write [MASK]"]),
        (["fill", "[MASK]", "--targets", "lists"], 3, ["a target is not one token", "'lists'"]),
        (["embed", "a " * 100], 3, ["text 0 is too long", "102 tokens", "64 tokens"]),
        (["fill", "[MASK]", "--model", "dist/library"], 2, ["dist/library is a model for another task", "classify"]),
        (["complete", "a"], 2, ["dist/encoder is a model for another task", "complete causal ones"]),
        (["complete", "a", "--model", "causal/dist/encoder", "--top-p", "0"], 3, ["`top_p` is out of bounds"]),
        (["complete", "a " * 99, "--model", "causal/dist/encoder"], 3, ["leaves no room", "`truncate`"]),
        (["fill", "[MASK]", "--model", "causal/dist/encoder"], 2, ["text-generation", "fill takes masked encoders"]),
        (["classify", "a", "--model", "others/ranker"], 3, ["text 0 has no second text", "--with"]),
        (["classify", "a", "--with", "b"], 2, ["reads one text at a time", "leave --with out"]),
        (["embed", "a", "--model", "dist/nothing"], 4, ["dist/nothing", "dvc repro"]),
    ],
)
def test_unusable_arguments_are_refused_with_advice(
    project: Path, arguments: list[str], code: int, told: list[str]
) -> None:
    done = ask(project, *arguments)
    stderr = done.stderr.decode()
    assert (done.returncode, done.stdout) == (code, b"")
    assert all(words in stderr for words in ["do:", *told]), stderr
    assert "Traceback" not in stderr


def test_a_long_text_is_truncated_on_request(project: Path) -> None:
    (line,) = lines_of(project, "embed", "a " * 100, "--truncate")
    assert line[1:] == lines_of(project, "embed", "a " * 62)[0][1:]


def test_without_a_model_the_command_to_type_is_named(tmp_path: Path) -> None:
    done = ask(tmp_path, "fill", "the [MASK]")
    assert done.returncode == 4
    assert b"run `make run`" in done.stderr


def test_invalid_utf_8_is_reported_with_its_line(project: Path) -> None:
    done = ask(project, "embed", "-", given=b"fine\nM\xfcnchen\n")
    assert done.returncode == 3
    assert b"line 2 of standard input is not UTF-8" in done.stderr


@pytest.mark.parametrize("verb", ["fill", "complete", "embed", "classify", "serve"])
def test_help_teaches_by_examples(tmp_path: Path, verb: str) -> None:
    done = ask(tmp_path, verb, "--help")
    assert done.returncode == 0
    assert f"clozeline {verb}" in done.stdout.decode().split("Examples:")[1]


def test_a_prediction_imports_no_training_and_no_serving_package(project: Path) -> None:
    heavy = ["torch", "transformers", "optimum", "mlflow", "prefect", "dvc", "pandas", "starlette", "uvicorn"]
    script = (
        "import sys; from clozeline.cli import app; sys.argv = ['clozeline', 'fill', 'the [MASK]']\n"
        "try: app()\n"
        f"finally: sys.stderr.write('LOADED %s' % (set({heavy}) & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=project, capture_output=True, text=True, check=True)
    assert done.stderr == "LOADED set()"
