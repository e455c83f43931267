"""`clozeline stage` refuses what it cannot run, and runs on several devices or nodes if the environment says so."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np  # noqa: F401  # the stage finds it loaded
import pytest
import typer
from threadpoolctl import threadpool_info, threadpool_limits
from typer.testing import CliRunner

from clozeline.cli import app, stage
from clozeline.cluster import store
from clozeline.cluster.ray_jobs import JobEnded
from clozeline.params.pretraining import PretrainParams
from clozeline.registry.start_lock import START_LOCK, StartLock, write_start_lock
from clozeline.system.errors import ArtifactError, ClozelineError, ParamsError, TransientError
from tests.conftest import PROJECT
from tests.make.params import with_values
from tests.stages.test_pretrain import project_with


def refused(
    *arguments: str, kind: type[ClozelineError], monkeypatch: pytest.MonkeyPatch, folder: Path = PROJECT
) -> str:
    monkeypatch.chdir(folder)
    error = CliRunner().invoke(app, ["stage", *arguments]).exception
    assert isinstance(error, kind), error
    return str(error)


def test_a_wrong_stage_argument_or_task_is_refused_with_the_right_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    for arguments, told in (
        ("pretrian out=x", "preprocess, pretrain, snapshot, tokenize"),
        ("evaluate encoder=a", "encoder=… tokens=… tokenizer=… training_text=… validation_text=… metrics=… plots=…"),
        ("evaluate encoder=a tokens=b colour=red", "`cmd` of stage `evaluate` in dvc.yaml"),
        ("finetune task=libary", "library"),
    ):
        assert told in refused(*arguments.split(), kind=ParamsError, monkeypatch=monkeypatch)


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
        refused("evaluate", "encoder=a", kind=ParamsError, monkeypatch=monkeypatch)
    assert told == [(str(expected), {expected})]


def test_a_stage_that_would_begin_with_its_own_output_never_asks_the_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    existing = {"algorithm": "existing", "existing": "models/encoder"}
    for name, values, arguments in (
        ("pretrain", {"start": "models/encoder"}, "start tokens tokenizer metrics curve validation timing work"),
        ("tokenize", existing, "start clean tokenizer metrics work"),
    ):
        with_values(tmp_path, **values)
        given = [f"{argument}={argument}" for argument in arguments.split()]
        told = refused(name, *given, "out=models/encoder", kind=ParamsError, monkeypatch=monkeypatch, folder=tmp_path)
        assert "is an output of this project" in told
        assert "cp -r models/encoder" in told


LOCK = StartLock(model="clozeline-encoder", version="3", text="ab", files={"config.json": "c0"}, architecture={})
OF_PAIRS = LOCK.model_copy(update={"architecture": {"objective": "rtd"}})
RUN = "`clozeline run --no-release`"


@pytest.mark.parametrize(
    ("stage", "recipe", "lock", "kind", "told"),
    [
        ("preprocess", "continue", None, ArtifactError, RUN),
        ("export", "continue", None, ArtifactError, RUN),
        ("preprocess", "continue", "missing", ArtifactError, RUN),
        ("pretrain", "measured", LOCK, ArtifactError, RUN),
        ("tokenize start=start.lock", "continue", LOCK, ArtifactError, "clozeline-encoder version 3"),
        ("snapshot", "continue", OF_PAIRS, ParamsError, "objective"),
    ],
)
def test_a_stage_stops_if_start_lock_params_and_registry_disagree(
    stage: str, recipe: str, lock: StartLock | str | None, kind: type[ClozelineError], told: str,
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    with_values(tmp_path, recipe=recipe)
    if not isinstance(lock, str):
        write_start_lock(tmp_path / START_LOCK, lock)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'mlflow.db'}")
    assert told in refused(*stage.split(), "out=x", kind=kind, monkeypatch=monkeypatch, folder=tmp_path)


PATHS = ["out=encoder", "metrics=metrics.json", "curve=curve.csv", "validation=validation.csv"]
PATHS += ["timing=timing.csv", "work=work"]
TWO = "--standalone --nproc-per-node 2"


def start(folder: Path, tokens: Path, tokenizer: Path, devices: str, **variables: str) -> "subprocess.Popen[str]":
    arguments = [f"tokens={tokens}", f"tokenizer={tokenizer}", "start=start.lock", *PATHS]
    return subprocess.Popen(
        [sys.executable, "-m", "clozeline", "stage", "pretrain", *arguments],
        cwd=folder,
        env={**os.environ, stage.TORCHRUN_VARIABLE: devices, "OMP_NUM_THREADS": "1", **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.fixture
def small(tiny_pretraining: PretrainParams) -> PretrainParams:
    """Pre-training with validation passes, at a learning rate at which Adam does not amplify rounding."""
    changes = {
        "optimizer": tiny_pretraining.optimizer.model_copy(update={"learning_rate": 1e-3}),
        "validation": tiny_pretraining.validation.model_copy(update={"every_steps": 6}),
        "steps": 12,
        "log_every_steps": 3,
    }
    return tiny_pretraining.model_copy(update=changes)


def test_a_stage_runs_in_several_processes_when_the_environment_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands that train in one process refuse the variable."""
    for name, environment, expected in (
        ("pretrain", {}, False),
        ("pretrain", {stage.TORCHRUN_VARIABLE: " "}, False),
        ("tokenize", {stage.TORCHRUN_VARIABLE: TWO}, False),
        ("pretrain", {stage.TORCHRUN_VARIABLE: TWO, "RANK": "0"}, False),
        *((name, {stage.TORCHRUN_VARIABLE: TWO}, True) for name in ("pretrain", "evaluate", "finetune")),
    ):
        assert stage.is_for_torchrun(name, environment) is expected
    monkeypatch.setenv(stage.TORCHRUN_VARIABLE, TWO)
    for verb in ("ablate params.yaml a=1", "sweep sweep.yaml", "glue folder"):
        result = CliRunner().invoke(app, verb.split())
        assert isinstance(result.exception, ParamsError)
        assert f"env -u {stage.TORCHRUN_VARIABLE} clozeline {verb.split()[0]}" in str(result.exception)


def test_a_place_to_meet_that_does_not_answer_is_named() -> None:
    nowhere = "--nnodes 2 --rdzv-backend c10d --rdzv-endpoint 127.0.0.1:1 --rdzv-conf is_host=false,read_timeout=1"
    with pytest.raises(TransientError, match=r"(?s)127\.0\.0\.1:1.*do not find each other"):
        stage.run_under_torchrun("pretrain", [], nowhere)


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        ("--nnodes 1 --standalone", None),
        ("--nnodes 2 --rdzv-backend c10d --rdzv-endpoint node0:29500", None),
        ("--nnodes 2 --node-rank 1 --master-addr node0", None),
        ("--nnodes 2", TransientError),
        ("--nnodes 2:1", ParamsError),
        ("--nnodes 2 --nproc-per-node gpu", ParamsError),
    ],
)
def test_ray_places_nodes_unless_the_arguments_say_where_they_meet_and_needs_numbers(
    arguments: str, fault: type[ClozelineError] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cluster does not answer, so a gang ends at once; a single process or nodes by hand never ask it."""
    started: list[list[str]] = []
    monkeypatch.setattr("torch.distributed.run.main", started.append)
    monkeypatch.setenv(store.VARIABLE, "ray://127.0.0.1:1")
    told = "no cluster answers at" if fault is TransientError else "a gang needs the number of nodes"
    with pytest.raises(fault, match=told) if fault else nullcontext():
        stage.run_under_torchrun("pretrain", [], arguments)
    assert bool(started) is (fault is None)


def test_two_processes_write_what_one_does_and_only_the_first_logs(
    small: PretrainParams, tiny_tokens: Path, tiny_tokenizer: Path, tmp_path: Path
) -> None:
    """Without tokens they end as one does."""
    folder = project_with(small, tmp_path / "project")
    process = start(folder, tiny_tokens, tiny_tokenizer, TWO, CLOZELINE_SHARDING="fsdp")
    _, told = process.communicate()
    assert process.returncode == 0, told
    assert {path.name for path in folder.iterdir()} == {"params.yaml", *(path.partition("=")[2] for path in PATHS)}
    figures = json.loads((folder / "metrics.json").read_text(encoding="utf-8"))
    assert (figures["world_size_at_start"], figures["world_size_at_end"]) == (2, 2)
    lines = ("parameters, ", "step 6: validation loss", "step 12: validation loss")
    assert [told.count(line) for line in lines] == [1, 1, 1]
    process = start(folder, tmp_path / "nothing", tiny_tokenizer, TWO)
    _, told = process.communicate()
    assert process.returncode == 4, told
    assert "do:" in told


def test_a_signal_ends_all_processes(
    small: PretrainParams, tiny_tokens: Path, tiny_tokenizer: Path, tmp_path: Path
) -> None:
    folder = project_with(small.model_copy(update={"steps": 4000}), tmp_path / "project")
    process = start(folder, tiny_tokens, tiny_tokenizer, TWO)
    deadline = time.monotonic() + 120
    while not list((folder / "work").glob("*/step-*")):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=240)
    assert process.returncode == 128 + signal.SIGTERM
    checkpoints = sorted((folder / "work").glob("*/step-*"))
    time.sleep(1)
    assert sorted((folder / "work").glob("*/step-*")) == checkpoints, "a process is still running"


def test_a_failed_process_keeps_its_exit_code_whatever_the_end_of_the_interpreter_does(tmp_path: Path) -> None:
    """Gloo's threads abort it now and then; here a function called at the end does."""
    fails = "import atexit, os; atexit.register(os.abort); from clozeline.cli import main; main()"
    command = [sys.executable, "-c", fails, "stage", "pretrain", "out=encoder"]
    done = subprocess.run(command, cwd=tmp_path, env={**os.environ, "RANK": "0"}, capture_output=True, text=True)
    assert done.returncode == ParamsError.exit_code, done.stderr
    assert "params.yaml" in done.stderr


def test_each_of_several_seeds_is_a_command_before_the_whole_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    """The training from seed 9 fails."""
    sent: list[list[list[str]]] = []

    def run_jobs(address: str, shared: Path, commands: Sequence[list[str]], *others: Any) -> list[JobEnded]:
        sent.append([command[4:] for command in commands])
        return [JobEnded("node", 5 if command[-1] == "only_seed=9" else 0, 0, 1) for command in commands]

    monkeypatch.setattr("clozeline.cluster.ray_jobs.run_jobs", run_jobs)
    monkeypatch.setattr("clozeline.cluster.store.reachable_cluster", lambda: "auto")
    whole = ["finetune", "task=library"]
    of_seed = [[*whole, f"only_seed={seed}"] for seed in range(10)]
    for seeds, exit_code, commands in (
        (range(7, 9), 0, [of_seed[7:9], [whole]]),
        (range(7, 8), 0, [[whole]]),
        (range(8, 10), 5, [of_seed[8:10]]),
    ):
        sent.clear()
        with pytest.raises(typer.Exit) as ended:
            stage.run_on_cluster("finetune", ["task=library"], seeds)
        assert (ended.value.exit_code, sent) == (exit_code, commands)
