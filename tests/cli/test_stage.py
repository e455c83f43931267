from pathlib import Path

import pytest
from typer.testing import CliRunner

from clozeline.cli import app
from clozeline.errors import ParamsError

PROJECT = Path(__file__).parents[2]


def stage(*arguments: str, monkeypatch: pytest.MonkeyPatch) -> ParamsError:
    monkeypatch.chdir(PROJECT)
    result = CliRunner().invoke(app, ["stage", *arguments])
    assert isinstance(result.exception, ParamsError)
    return result.exception


def test_an_unknown_stage_is_refused_with_the_known_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "preprocess, pretrain, snapshot, tokenize" in str(stage("pretrian", "out=x", monkeypatch=monkeypatch))


@pytest.mark.parametrize("arguments", [["encoder=a"], ["encoder=a", "tokens=b", "colour=red"]])
def test_wrong_arguments_are_refused_with_those_the_stage_takes(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    told = str(stage("evaluate", *arguments, monkeypatch=monkeypatch))
    assert "encoder=… tokens=… tokenizer=… training_text=… validation_text=… metrics=… plots=… examples=…" in told
    assert "`cmd` of stage `evaluate` in dvc.yaml" in told


def test_a_task_without_a_section_in_params_is_refused_with_those_that_have_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert "library" in str(stage("finetune", "task=libary", monkeypatch=monkeypatch))
