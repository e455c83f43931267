"""`clozeline choose` ranks labels without training, by an encoder or by entailment; errors say what to type."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from clozeline.cli import app
from clozeline.inference.package import load
from clozeline.serving.zero_shot import choose
from clozeline.system.errors import ClozelineError
from tests.make.packages import classifier_graph, write_classifier, write_encoder, write_package, write_tagger

TEXT, OTHER = "open the file", "return a list of é"
LABELS = ["list", "return file", "é"]
JOINED = "list, return file,é"
NAMES = ("contradiction", "neutral", "entailment")


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("project")
    write_encoder(folder / "dist" / "encoder")
    write_classifier(folder / "dist" / "library")
    write_tagger(folder / "dist" / "names")
    write_package(folder / "dist" / "nli", "text-classification", classifier_graph(), labels=NAMES, reads_pairs=True)
    return folder


@pytest.fixture(autouse=True)
def _inside(monkeypatch: pytest.MonkeyPatch, project: Path) -> None:
    monkeypatch.chdir(project)


def ask(*arguments: str, given: bytes = b"") -> Result:
    return CliRunner().invoke(app, ["choose", *arguments], input=given)


def scores_of(*arguments: str, given: bytes = b"") -> dict[str, dict[str, float]]:
    done = ask(*arguments, "--json", given=given)
    assert done.exit_code == 0, done.exception
    records = [json.loads(line) for line in done.stdout.splitlines()]
    return {record["text"]: {one["label"]: one["score"] for one in record["labels"]} for record in records}


def test_the_encoder_answers_unless_another_model_is_named() -> None:
    for arguments, folder, template in (
        ((), "encoder", "This text is about {}."),
        (("--template", "of {}"), "encoder", "of {}"),
        (("--model", "dist/nli"), "nli", "This text is about {}."),
    ):
        model = load(Path("dist") / folder)
        expected = {
            text: {one.label: pytest.approx(one.score) for one in choose(model, text, LABELS, template=template)}
            for text in (TEXT, OTHER)
        }
        assert scores_of(TEXT, OTHER, "--labels", JOINED, *arguments) == expected
    assert scores_of(TEXT, "-l", JOINED) != scores_of(TEXT, "-l", JOINED, "--template", "of {}")


def test_each_label_gets_a_line_best_first_and_each_line_of_standard_input_is_a_text() -> None:
    done = ask("-", "--labels", JOINED, given=f"{TEXT}\n\n {OTHER}\n".encode())
    lines = [line.split("\t") for line in done.stdout.splitlines()]
    assert [line[:2] for line in lines] == [[text, str(rank)] for text in (TEXT, OTHER) for rank in (1, 2, 3)]
    assert {line[2] for line in lines} == set(LABELS)
    scores = [float(line[3]) for line in lines]
    assert scores[:3] == sorted(scores[:3], reverse=True)
    assert sum(scores[:3]) == pytest.approx(1, abs=1e-4)


def test_entailment_can_score_each_label_independently() -> None:
    (scores,) = scores_of(TEXT, "-l", JOINED, "--multi-label", "--model", "dist/nli").values()
    assert sum(scores.values()) != pytest.approx(1, abs=1e-3)


def test_a_long_text_is_truncated_on_request() -> None:
    assert len(scores_of("a " * 100, "-l", JOINED, "--truncate")) == 1


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (["-l", "lists"], 3, ["label 'lists'", "one token each"]),
        (["-l", "list,"], 2, ["--labels cannot be used", "'list,'"]),
        (["-l", "list,list"], 2, ["--labels cannot be used", "each once"]),
        (["-l", JOINED, "--template", "none"], 3, ["hypothesis_template"]),
        (["-l", JOINED, "--multi-label"], 2, ["compete for one mask", "leave --multi-label out"]),
        (["-l", JOINED, "--model", "dist/library"], 2, ["dist/library cannot choose", "clozeline classify"]),
        (["-l", JOINED, "--model", "dist/names"], 2, ["dist/names is a model for another task", "choose"]),
    ],
)
def test_an_error_has_all_four_parts(arguments: list[str], code: int, told: list[str]) -> None:
    done = ask(TEXT, *arguments)
    assert isinstance(done.exception, ClozelineError), done.exception
    assert (done.exception.exit_code, done.stdout) == (code, "")
    assert all(words in str(done.exception) for words in ["given:", "expected:", "do:", *told]), done.exception


def test_help_teaches_by_examples() -> None:
    assert "clozeline choose" in ask("--help").stdout.split("Examples:")[1]
