"""`clozeline stage pretrain` runs on several devices by the same command; the environment sets how many."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from safetensors.torch import load_file
from typer.testing import CliRunner

from clozeline.cli import app
from clozeline.cli import stage as torchrun
from clozeline.cluster import address
from clozeline.params.pretraining import PretrainParams
from clozeline.system.errors import ParamsError, TransientError
from tests.make.servers import held_ports
from tests.stages.test_pretrain import project_with

PATHS = ["out=encoder", "metrics=metrics.json", "curve=curve.csv", "looks=looks.csv", "timing=timing.csv", "work=work"]
TWO = "--standalone --nproc-per-node 2"


def start(folder: Path, tokens: Path, tokenizer: Path, devices: str, **variables: str) -> "subprocess.Popen[str]":
    arguments = [f"tokens={tokens}", f"tokenizer={tokenizer}", "start=start.lock", *PATHS]
    return subprocess.Popen(
        [sys.executable, "-m", "clozeline", "stage", "pretrain", *arguments],
        cwd=folder,
        env={**os.environ, torchrun.TORCHRUN_VARIABLE: devices, "OMP_NUM_THREADS": "1", **variables},
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
        ("pretrain", {torchrun.TORCHRUN_VARIABLE: " "}),
        ("tokenize", {torchrun.TORCHRUN_VARIABLE: TWO}),
        ("pretrain", {torchrun.TORCHRUN_VARIABLE: TWO, "RANK": "0"}),
        ("pretrain", {torchrun.TORCHRUN_VARIABLE: TWO, "TORCHELASTIC_RUN_ID": "none"}),
    ],
)
def test_a_single_process_is_not_started_through_torchrun(stage: str, environment: dict[str, str]) -> None:
    assert not torchrun.is_for_torchrun(stage, environment)


@pytest.mark.parametrize("stage", ["pretrain", "evaluate", "finetune"])
def test_a_stage_runs_in_several_processes_when_the_environment_says_so(stage: str) -> None:
    assert torchrun.is_for_torchrun(stage, {torchrun.TORCHRUN_VARIABLE: TWO})


@pytest.mark.parametrize("verb", ["ablate params.yaml a=1", "sweep sweep.yaml", "glue folder"])
def test_commands_that_train_in_one_process_refuse_the_variable(verb: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(torchrun.TORCHRUN_VARIABLE, TWO)
    result = CliRunner().invoke(app, verb.split())
    assert isinstance(result.exception, ParamsError)
    assert f"env -u {torchrun.TORCHRUN_VARIABLE} clozeline {verb.split()[0]}" in str(result.exception)


def test_a_place_to_meet_that_does_not_answer_is_named() -> None:
    nowhere = "--nnodes 2 --rdzv-backend c10d --rdzv-endpoint 127.0.0.1:1 --rdzv-conf is_host=false,read_timeout=1"
    with pytest.raises(TransientError, match=r"(?s)do not find each other.*127\.0\.0\.1:1"):
        torchrun.run_under_torchrun("pretrain", [], nowhere)


@pytest.mark.parametrize(
    ("arguments", "is_for_gang"),
    [
        ("--nnodes 2", True),
        ("--nnodes=1:4 --nproc-per-node 8 --rdzv-conf last_call_timeout=5", True),
        ("--nproc-per-node 8", False),
        ("--nnodes 1 --standalone", False),
        ("--nnodes 2 --rdzv-backend c10d --rdzv-endpoint node0:29500", False),
        ("--nnodes 2 --node-rank 1 --master-addr node0", False),
        ("--nnodes 2 --node-rank 0 --master-addr node0", False),
    ],
)
def test_ray_places_nodes_unless_the_arguments_say_where_they_meet(
    arguments: str, *, is_for_gang: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cluster does not answer, so a gang ends at once; a single process or nodes by hand never ask it."""
    started: list[list[str]] = []
    monkeypatch.setattr("torch.distributed.run.main", started.append)
    monkeypatch.setenv(address.VARIABLE, "ray://127.0.0.1:1")
    if is_for_gang:
        with pytest.raises(TransientError, match=r"no cluster answers at 127\.0\.0\.1:1"):
            torchrun.run_under_torchrun("pretrain", [], arguments)
    else:
        torchrun.run_under_torchrun("pretrain", [], arguments)
    assert bool(started) is not is_for_gang


@pytest.mark.parametrize("arguments", ["--nnodes two", "--nnodes 2:1", "--nnodes 2 --nproc-per-node gpu"])
def test_a_gang_needs_numbers(arguments: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(address.VARIABLE, "ray://127.0.0.1:1")
    with pytest.raises(ParamsError, match="a gang needs the number of nodes"):
        torchrun.run_under_torchrun("pretrain", [], arguments)


def test_two_processes_give_the_weights_of_one_and_only_the_first_logs(
    small: PretrainParams, tiny_tokens: Path, tiny_tokenizer: Path, tmp_path: Path
) -> None:
    """Also on two nodes, each with its torchrun and the same command."""
    weights, told = {}, {}
    with held_ports() as free_port:
        node = f"--nnodes 2 --nproc-per-node 1 --rdzv-backend c10d --rdzv-endpoint 127.0.0.1:{free_port()}"
        cases = {"one": ([""], "ddp"), "nodes": ([node, node], "ddp"), "parts": ([TWO], "fsdp")}
        for name, (devices, sharding) in cases.items():
            folder = project_with(small, tmp_path / name)
            nodes = [start(folder, tiny_tokens, tiny_tokenizer, of, CLOZELINE_SHARDING=sharding) for of in devices]
            told[name] = "".join(process.communicate()[1] for process in nodes)
            assert not any(process.returncode for process in nodes), told[name]
            weights[name] = load_file(folder / "encoder" / "model.safetensors")
            written = {path.name for path in folder.iterdir()} - {"params.yaml"}
            assert written == {"encoder", "metrics.json", "curve.csv", "looks.csv", "timing.csv", "work"}
            figures = json.loads((folder / "metrics.json").read_text(encoding="utf-8"))
            expected = 1 if name == "one" else 2
            assert (figures["world_size_at_start"], figures["world_size_at_end"]) == (expected, expected)
    for name in ("nodes", "parts"):
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
    process.communicate(timeout=240)
    assert process.returncode == 128 + signal.SIGTERM
    checkpoints = sorted((folder / "work").glob("*/step-*"))
    time.sleep(1)
    assert sorted((folder / "work").glob("*/step-*")) == checkpoints, "a process is still running"


def test_a_failed_process_keeps_its_exit_code_whatever_the_end_of_the_interpreter_does(tmp_path: Path) -> None:
    """Gloo's threads abort it now and then; here a function called at the end does."""
    fails = "import atexit, os; atexit.register(os.abort); from clozeline.cli import main; main()"
    process = subprocess.run(
        [sys.executable, "-c", fails, "stage", "pretrain", "out=encoder"],
        cwd=tmp_path,
        env={**os.environ, "RANK": "0"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == ParamsError.exit_code, process.stderr
    assert "params.yaml" in process.stderr
