import os
from pathlib import Path

import numpy as np  # noqa: F401  # the stage finds it loaded
import pytest
from threadpoolctl import threadpool_info, threadpool_limits
from typer.testing import CliRunner

from clozeline.cli import app
from clozeline.registry.start_lock import START_LOCK, StartLock, write_start_lock
from clozeline.system.errors import ArtifactError, ParamsError
from tests.make.params import with_values

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


@pytest.mark.parametrize(("given", "expected"), [("", 1), ("2", 2)])
def test_the_most_cores_hold_for_torch_before_it_is_loaded_and_for_numpy(
    given: str, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = []

    def loaded(name: str) -> None:
        blas = {library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"}
        told.append((os.environ["OMP_NUM_THREADS"], blas))
        raise ParamsError(name, given="", expected="", do="")

    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    monkeypatch.setenv("CLOZELINE_CORES", "1")
    monkeypatch.setenv("OMP_NUM_THREADS", given)  # so that it is restored
    if not given:
        del os.environ["OMP_NUM_THREADS"]
    monkeypatch.setattr("clozeline.cli.stage.stage_named", loaded)
    with threadpool_limits(3, user_api="blas"):  # restores the threads of this process
        stage("evaluate", "encoder=a", monkeypatch=monkeypatch)
    assert told == [(str(expected), {expected})]


def test_a_task_without_a_section_in_params_is_refused_with_those_that_have_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert "library" in str(stage("finetune", "task=libary", monkeypatch=monkeypatch))


@pytest.mark.parametrize(
    ("name", "values", "arguments"),
    [
        ("pretrain", {"start": "models/encoder"}, "start tokens tokenizer metrics curve looks timing work"),
        ("tokenize", {"algorithm": "existing", "existing": "models/encoder"}, "start clean tokenizer metrics work"),
    ],
)
def test_a_stage_that_would_begin_with_its_own_output_never_asks_the_hub(
    name: str, values: dict[str, str], arguments: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_values(tmp_path, **values)
    monkeypatch.chdir(tmp_path)
    given = [f"{argument}={argument}" for argument in arguments.split()]
    error = CliRunner().invoke(app, ["stage", name, *given, "out=models/encoder"]).exception
    assert isinstance(error, ParamsError)
    assert "is an output of this project" in error.problem
    assert "cp -r models/encoder" in error.do


LOCK = StartLock(model="clozeline-encoder", version="3", text="ab", files={"config.json": "c0"}, architecture={})


@pytest.mark.parametrize("name", ["preprocess", "tokenize", "pretrain", "export"])
@pytest.mark.parametrize(("recipe", "lock"), [("continue", None), ("continue", "missing"), ("measured", LOCK)])
def test_every_stage_stops_without_a_start_lock_and_names_the_command(
    name: str, recipe: str, lock: StartLock | str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_values(tmp_path, recipe=recipe)
    if not isinstance(lock, str):
        write_start_lock(tmp_path / START_LOCK, lock)
    monkeypatch.chdir(tmp_path)
    error = CliRunner().invoke(app, ["stage", name, "out=x"]).exception
    assert isinstance(error, ArtifactError)
    assert START_LOCK in error.problem
    assert "`clozeline run --no-release`" in error.do


def test_a_version_missing_in_the_registry_is_refused_before_its_stage_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_values(tmp_path, recipe="continue")
    write_start_lock(tmp_path / START_LOCK, LOCK)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'mlflow.db'}")
    error = CliRunner().invoke(app, ["stage", "tokenize", "start=start.lock", "out=x"]).exception
    assert isinstance(error, ArtifactError)
    assert "clozeline-encoder version 3" in str(error.given)


def test_params_that_contradict_the_locked_model_stop_the_first_stage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_values(tmp_path, recipe="continue")
    write_start_lock(tmp_path / START_LOCK, LOCK.model_copy(update={"architecture": {"objective": "rtd"}}))
    monkeypatch.chdir(tmp_path)
    error = CliRunner().invoke(app, ["stage", "snapshot", "out=x"]).exception
    assert isinstance(error, ParamsError)
    assert "objective" in str(error)
