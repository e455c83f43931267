"""Several processes on this machine's CPU, by the engines that several machines use."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from clozeline.errors import ParamsError
from clozeline.params import PretrainParams
from clozeline.training import pretraining
from clozeline.training.distribution import Processes
from tests.training import two_ranks

SCRIPT = Path(two_ranks.__file__)


Trained = tuple[dict[str, torch.Tensor], dict[str, Any]]
"""Weights, and what the first process told: where it began, and its losses."""


def by_two(params: PretrainParams, tokens: Path, tokenizer: Path, folder: Path, sharding: str = "ddp") -> Trained:
    folder.mkdir()
    (folder / "params.json").write_text(params.model_dump_json(), encoding="utf-8")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    environment = {**os.environ, "CLOZELINE_SHARDING": sharding, "OMP_NUM_THREADS": "1"}
    result = subprocess.run(
        [*torchrun, str(SCRIPT), str(folder), str(tokens), str(tokenizer)],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    return load_file(folder / "encoder" / "model.safetensors"), json.loads((folder / "told.json").read_text())


def by_one(params: PretrainParams, tokens: Path, tokenizer: Path, folder: Path) -> Trained:
    """What each of the two does, in this process."""
    folder.mkdir(exist_ok=True)
    told = two_ranks.train(params, tokens, tokenizer, folder)
    return load_file(folder / "encoder" / "model.safetensors"), told


@pytest.fixture
def small(tiny_pretraining: PretrainParams) -> PretrainParams:
    """A learning rate at which rounding is not blown up by Adam, on few steps."""
    optimizer = tiny_pretraining.optimizer.model_copy(update={"learning_rate": 1e-3})
    return tiny_pretraining.model_copy(update={"steps": 12, "optimizer": optimizer, "log_every_steps": 3})


@pytest.mark.slow
@pytest.mark.parametrize("sharding", ["ddp", "fsdp"])
def test_two_processes_end_with_the_parameters_of_one(
    small: PretrainParams, tiny_tokens: Path, tiny_tokenizer: Path, tmp_path: Path, sharding: str
) -> None:
    """P22: each takes half of a batch's rows, so one process with the doubled half is the same params alone.

    P6, P27: nor do masks or the learning rate depend on how many they are; the logged loss is that of both.
    """
    one, one_told = by_one(small, tiny_tokens, tiny_tokenizer, tmp_path / "one")
    two, two_told = by_two(small, tiny_tokens, tiny_tokenizer, tmp_path / "two", sharding)
    assert one.keys() == two.keys()
    assert max((one[name] - two[name]).abs().max().item() for name in one) < 1e-5
    assert two_told["losses"] == pytest.approx(one_told["losses"], abs=1e-5)


@pytest.mark.slow
def test_two_processes_detect_replaced_tokens_as_one_does(
    small: PretrainParams, tiny_tokens: Path, tiny_tokenizer: Path, tmp_path: Path
) -> None:
    """P22: two models that share a table, of which half the rows of a batch are in each process."""
    model = small.model.model_copy(update={"family": "electra"})
    params = small.model_copy(update={"objective": "rtd", "model": model})
    one = pretraining.pretrain(params, seed=1, tokens=tiny_tokens, tokenizer=tiny_tokenizer)
    one.save(tmp_path / "one")
    _, two_told = by_two(params, tiny_tokens, tiny_tokenizer, tmp_path / "two")
    for file in ("model.safetensors", "generator/model.safetensors"):
        alone, both = load_file(tmp_path / "one" / file), load_file(tmp_path / "two" / "encoder" / file)
        assert alone.keys() == both.keys()
        assert max((alone[name] - both[name]).abs().max().item() for name in alone) < 1e-5
    assert two_told["losses"] == pytest.approx([point.loss for point in one.state.curve], abs=1e-4)


@pytest.mark.slow
def test_what_two_processes_began_one_can_finish(
    small: PretrainParams, tiny_tokens: Path, tiny_tokenizer: Path, tmp_path: Path
) -> None:
    """A checkpoint holds the whole state, whoever wrote it."""
    part = small.model_copy(update={"checkpoint_every_steps": 5, "micro_batch_tokens": 100})
    by_two(part, tiny_tokens, tiny_tokenizer, tmp_path / "both")
    finished, told = by_one(part, tiny_tokens, tiny_tokenizer, tmp_path / "both")
    assert told["started_at"] == 10, "it goes on from the checkpoint of the two"
    alone, _ = by_one(part, tiny_tokens, tiny_tokenizer, tmp_path / "alone")
    assert max((finished[name] - alone[name]).abs().max().item() for name in alone) < 1e-5


def test_a_process_alone_is_the_first_of_one() -> None:
    processes = Processes.join({})
    assert (processes.rank, processes.world_size, processes.is_first) == (0, 1, True)


def test_an_unknown_sharding_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ParamsError, match=r"(?s)CLOZELINE_SHARDING.*zero3.*ddp.*fsdp"):
        Processes.join({"CLOZELINE_SHARDING": "zero3"})


def test_muon_is_refused_where_no_process_has_a_whole_matrix() -> None:
    sharded = Processes(0, 2, torch.device("cpu"), "fsdp")
    with pytest.raises(ParamsError, match=r"(?s)muon.*CLOZELINE_SHARDING"):
        sharded.check("muon")
    sharded.check("adamw")
    Processes.alone().check("muon")
