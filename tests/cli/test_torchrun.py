"""`clozeline stage pretrain` runs on several devices by the same command; the environment sets how many."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from safetensors.torch import load_file
from typer.testing import CliRunner

from clozeline.cli import app, torchrun
from clozeline.errors import ParamsError
from clozeline.params import PretrainParams
from tests.stages.test_pretrain import project_with

PATHS = ["out=encoder", "metrics=metrics.json", "curve=curve.csv", "looks=looks.csv", "timing=timing.csv", "work=work"]
TWO = "--standalone --nproc-per-node 2"


def start(folder: Path, tokens: Path, tokenizer: Path, devices: str, **variables: str) -> "subprocess.Popen[str]":
    arguments = [f"tokens={tokens}", f"tokenizer={tokenizer}", "start=start.lock", *PATHS]
    return subprocess.Popen(
        [sys.executable, "-m", "clozeline", "stage", "pretrain", *arguments],
        cwd=folder,
        env={**os.environ, torchrun.VARIABLE: devices, "OMP_NUM_THREADS": "1", **variables},
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


@pytest.mark.parametrize(
    ("stage", "environment"),
    [
        ("pretrain", {}),
        ("pretrain", {torchrun.VARIABLE: " "}),
        ("tokenize", {torchrun.VARIABLE: TWO}),
        ("pretrain", {torchrun.VARIABLE: TWO, "RANK": "0"}),
        ("pretrain", {torchrun.VARIABLE: TWO, "TORCHELASTIC_RUN_ID": "none"}),
    ],
)
def test_a_single_process_is_not_started_through_torchrun(stage: str, environment: dict[str, str]) -> None:
    assert not torchrun.is_wanted(stage, environment)


@pytest.mark.parametrize("stage", ["pretrain", "evaluate", "finetune"])
def test_a_stage_runs_in_several_processes_when_the_environment_says_so(stage: str) -> None:
    assert torchrun.is_wanted(stage, {torchrun.VARIABLE: TWO})


@pytest.mark.parametrize("verb", ["ablate params.yaml a=1", "sweep sweep.yaml", "glue folder"])
def test_commands_that_train_in_one_process_refuse_the_variable(verb: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(torchrun.VARIABLE, TWO)
    result = CliRunner().invoke(app, verb.split())
    assert isinstance(result.exception, ParamsError)
    assert f"env -u {torchrun.VARIABLE} clozeline {verb.split()[0]}" in str(result.exception)


def test_two_processes_give_the_weights_of_one_and_only_the_first_logs(
    small: PretrainParams, tiny_tokens: Path, tiny_tokenizer: Path, tmp_path: Path
) -> None:
    weights, told = {}, {}
    for name, devices, sharding in (("one", "", "ddp"), ("two", TWO, "ddp"), ("parts", TWO, "fsdp")):
        folder = project_with(small, tmp_path / name)
        process = start(folder, tiny_tokens, tiny_tokenizer, devices, CLOZELINE_SHARDING=sharding)
        _, told[name] = process.communicate()
        assert process.returncode == 0, told[name]
        weights[name] = load_file(folder / "encoder" / "model.safetensors")
        written = {path.name for path in folder.iterdir()} - {"params.yaml"}
        assert written == {"encoder", "metrics.json", "curve.csv", "looks.csv", "timing.csv", "work"}
    for name in ("two", "parts"):
        assert weights[name].keys() == weights["one"].keys()
        assert max((weights[name][key] - weights["one"][key]).abs().max().item() for key in weights[name]) < 1e-5
        for told_once in ("parameters, ", "step 6: validation loss", "step 12: validation loss"):
            assert told[name].count(told_once) == told["one"].count(told_once) == 1


def test_an_error_has_the_same_exit_code_with_one_or_several_processes(
    small: PretrainParams, tiny_tokenizer: Path, tmp_path: Path
) -> None:
    folder = project_with(small, tmp_path / "project")
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
    process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM
    checkpoints = sorted((folder / "work").glob("*/step-*"))
    time.sleep(1)
    assert sorted((folder / "work").glob("*/step-*")) == checkpoints, "a process is still running"
