"""Claim: a run of GLUE trains what is there, keeps what is finished, and names what is missing."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from clozeline.cli import app
from clozeline.lab import glue as running
from clozeline.lab import glue as training
from clozeline.lab.glue_data import chosen, glue_tasks
from clozeline.system.errors import ArtifactError, ClozelineError, DataError, ParamsError
from tests.glue.copies import write_official

SMALL = [
    "--set",
    "epochs=1",
    "--set",
    "max_length=24",
    "--set",
    "num_threads=1",
    "--set",
    "optimizer.learning_rate=0.01",
]


@pytest.fixture(autouse=True)
def outside_a_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def glue(*arguments: object) -> str:
    result = CliRunner().invoke(app, ["glue", *map(str, arguments)], catch_exceptions=False)
    assert result.exit_code == 0
    return result.stdout


def test_tasks_are_trained_once_and_missing_ones_are_named(
    small_encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_official(tmp_path / "glue", [glue_tasks()["mnli"], glue_tasks()["stsb"]])
    asked = ("glue", "-m", small_encoder, *SMALL)
    found = json.loads(glue(*asked, "--json"))
    assert [task["task"] for task in found["tasks"]] == ["stsb", "mnli"]
    assert set(found["tasks"][0]["metrics"]) == {"pearson", "spearman"}
    assert set(found["tasks"][1]["metrics"]) == {"dev_matched accuracy", "dev_mismatched accuracy"}
    assert [task["num_dev"] for task in found["tasks"]] == [12, 24]
    assert found["missing"] == ["cola", "sst2", "mrpc", "qqp", "qnli", "rte"]
    assert found["average"] is None
    (written,) = (tmp_path / "work/glue").glob("*/glue.json")
    assert json.loads(written.read_text()) == found
    assert not list((tmp_path / "work/glue/training").rglob("*.pt")), "checkpoints of finished trainings"

    def never(*_: object) -> None:
        raise AssertionError("trained again")

    monkeypatch.setattr(training, "train_each", never)
    told = glue(*asked)
    assert "No GLUE average: CoLA, SST-2, MRPC, QQP, QNLI, RTE missing." in told
    with pytest.raises(AssertionError, match="trained again"):
        glue(*asked, "--tasks", "stsb", "--seeds", "2")


def test_faults_are_told_before_any_training(
    small_encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "trained", lambda *_: pytest.fail("trained"))
    write_official(tmp_path / "glue", [glue_tasks()["rte"]])
    cases: list[tuple[tuple[object, ...], type[ClozelineError], str]] = [
        (("nowhere", "-m", small_encoder), DataError, "no folder nowhere"),
        (("glue", "-m", small_encoder, "--tasks", "cola,rte"), DataError, "lacks cola"),
        (("glue",), ArtifactError, "models/encoder"),
        (("glue", "-m", small_encoder, "--set", "epoch=3"), ClozelineError, "epochs"),
        (("glue", "-m", small_encoder, "--set", "num_seeds=3"), ParamsError, "num_seeds"),
    ]
    for arguments, kind, words in cases:
        with pytest.raises(kind, match=words):
            glue(*arguments)


def test_another_model_than_ours_gets_the_rate_of_published_ones(
    small_encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rates = []

    def stop(_task: object, params: object, *_: object) -> None:
        rates.append(params.optimizer.learning_rate)  # type: ignore[attr-defined]
        raise InterruptedError

    monkeypatch.setattr(running, "trained", stop)
    write_official(tmp_path / "glue", chosen("rte"))
    (tmp_path / "models").mkdir()
    (tmp_path / "models/encoder").symlink_to(small_encoder)
    other = ("-m", small_encoder, "--set", "optimizer.weight_decay=0.0")
    for arguments in (("-m", small_encoder), (), ("-m", small_encoder, "--set", "optimizer.learning_rate=0.1"), other):
        with pytest.raises(InterruptedError):
            glue("glue", *arguments)
    assert rates == [5e-5, 2e-3, 0.1, 5e-5]
