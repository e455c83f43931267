"""Several processes on the CPU of this machine, with the engines that several machines use."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from clozeline.encoder.families import FAMILIES
from clozeline.params.pretraining import PretrainParams
from clozeline.system.errors import ParamsError
from clozeline.training.distribution import Processes
from tests.conftest import counting_documents, write_tokens
from tests.make.projects import PROJECT
from tests.make.servers import held_ports
from tests.training import two_ranks
from tests.training.prepared import CPU, DETECTING, changed

# Of the families whose losses ignore some weights, one is enough for the sharding that has to know it.
FAMILY_CASES = ["longformer ddp", *(f"{family} fsdp" for family in FAMILIES)]
FEW_ROWS = ["few rows", "few rows, detecting", "few rows in parts, divided"]
# Cases that go on from their newest checkpoint in a second run.
AGAIN = ("best kept, divided, with checkpoints", "best kept, in shards")

Weights = dict[str, torch.Tensor]
# How models are divided, and params.
Case = tuple[str, PretrainParams]


def cases_of(params: PretrainParams) -> dict[str, Case]:
    # At this learning rate Adam does not amplify rounding in a few steps.
    small = changed(params, steps=12, log_every_steps=3, optimizer__learning_rate=1e-3)
    saved = changed(small, checkpoint_every_steps=5)
    # Later validation losses are worse.
    worse = changed(small, optimizer__learning_rate=5.0, schedule__warmup_fraction=0.9, validation__every_steps=2)
    best = changed(worse, validation__patience=50)
    best_saved = changed(best, checkpoint_every_steps=5)
    few_rows = changed(small, batch_tokens=32)
    brief = changed(small, steps=3, log_every_steps=1, schedule__warmup_fraction=0.3)
    return {
        "ddp": ("ddp", small),
        "fsdp": ("fsdp", small),
        "detecting": ("ddp", changed(small, **DETECTING)),
        "in parts": ("ddp", changed(saved, micro_batch_tokens=100)),
        "in shards": ("ddp", saved),
        "in shards, divided": ("fsdp", saved),
        "few rows": ("ddp", few_rows),
        "few rows, detecting": ("ddp", changed(few_rows, **DETECTING)),
        "few rows in parts, divided": ("fsdp", changed(small, batch_tokens=100, micro_batch_tokens=32)),
        "little memory": ("ddp", brief),
        "better and better": ("ddp", changed(worse, validation__patience=2)),
        "best kept, divided": ("fsdp", changed(best, checkpoint_every_steps=50)),
        "best kept, divided, with checkpoints": ("fsdp", best_saved),
        "best kept, in shards": ("fsdp", best_saved),
        **{name: (name.split()[1], changed(brief, model__family=name.split()[0])) for name in FAMILY_CASES},
    }


def write_cases(folder: Path, cases: Mapping[str, Case], names: list[str]) -> None:
    told = [{"name": name, "sharding": cases[name][0], "params": cases[name][1].model_dump()} for name in names]
    (folder / "cases.json").write_text(json.dumps(told), encoding="utf-8")


def told_of(folder: Path, rank: int = 0) -> dict[str, Any]:
    told: dict[str, Any] = json.loads((folder / f"told-{rank}.json").read_text(encoding="utf-8"))
    return told


def weights_in(folder: Path) -> Weights:
    """Return the weights of a saved encoder, and of its generator if it has one."""
    files = sorted((folder / "encoder").rglob("model.safetensors"))
    return {f"{file.parent.name}/{name}": weight for file in files for name, weight in load_file(file).items()}


def largest_difference(one: Weights, other: Weights) -> float:
    assert one.keys() == other.keys()
    return max((one[name] - other[name]).abs().max().item() for name in one)


class Together:
    """Each case trained by two processes; one start serves all, since it takes longer than they do."""

    def __init__(self, folder: Path, tokens: Path, tokenizer: Path, cases: dict[str, Case]) -> None:
        self.folder, self._tokens, self._tokenizer, self._cases = folder, tokens, tokenizer, cases
        write_cases(folder, cases, [*cases, *AGAIN])
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
        result = subprocess.run(
            [*torchrun, two_ranks.__file__, *map(str, (folder, tokens, tokenizer))],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            timeout=900,
        )
        assert result.returncode == 0, result.stderr

    def alone(self, name: str, folder: Path) -> dict[str, Any]:
        """Train the case in this process, in a folder of its own or in one where it was begun; return its report."""
        folder.mkdir(exist_ok=True)
        return two_ranks.train(self._cases[name][1], self._tokens, self._tokenizer, folder)


@pytest.fixture(scope="module")
def two(tmp_path_factory, made_tiny_tokenizer, tiny_pretraining) -> Together:
    folder = tmp_path_factory.mktemp("two")
    documents = counting_documents(300, seed=0), counting_documents(40, seed=1)
    tokens = write_tokens(folder / "tokens", made_tiny_tokenizer, *documents)
    return Together(folder, tokens, made_tiny_tokenizer, cases_of(tiny_pretraining))


@pytest.mark.parametrize("name", ["ddp", "fsdp", "detecting", *FEW_ROWS, *FAMILY_CASES])
def test_two_processes_end_with_the_parameters_of_a_single_one(two: Together, tmp_path: Path, name: str) -> None:
    """P22: each takes half of a batch's rows, so one process with the doubled half is the same params alone. Also where
    two models share a table, where a batch has fewer rows than there are processes, where a loss does not depend on
    some weights, and where lists of layers hold lists of layers.

    P6, P27: masks and learning rate do not depend on the number of processes; the logged loss is that of all.
    """
    alone, told = two.alone(name, tmp_path), told_of(two.folder / name)
    assert largest_difference(weights_in(two.folder / name), weights_in(tmp_path)) < 1e-5
    assert told["losses"] == pytest.approx(alone["losses"], abs=1e-4 if "detecting" in name else 1e-5)
    assert told["accuracies"] == pytest.approx(alone["accuracies"], abs=0.01)


@pytest.mark.parametrize("name", ["in parts", "in shards", "in shards, divided"])
def test_one_process_can_resume_a_training_of_two_processes(two: Together, tmp_path: Path, name: str) -> None:
    """A checkpoint holds the whole state, whichever process wrote it, in one file or in one of each process."""
    (newest,) = two.folder.glob(f"{name}/work/*/step-000000010")
    assert len(list(newest.glob("*.distcp"))) == (2 if "in shards" in name else 0)
    assert two.alone(name, two.folder / name)["started_at"] == 10, "it resumes from the checkpoint of both"
    two.alone(name, tmp_path)
    assert largest_difference(weights_in(two.folder / name), weights_in(tmp_path)) < 1e-5


@pytest.mark.parametrize("name", AGAIN)
def test_a_sharded_model_returns_its_best_weights(two: Together, name: str) -> None:
    """The best validation pass precedes the checkpoint, which holds its whole weights."""
    assert told_of(two.folder / name)["started_at"] == 10
    whole = weights_in(two.folder / "best kept, divided")
    assert largest_difference(weights_in(two.folder / name), whole) == 0.0


def test_running_out_of_memory_in_one_process_halves_the_micro_batches_of_all(two: Together, tmp_path: Path) -> None:
    """The second process runs out in a backward pass; the first learns of it before waiting for the sum."""
    folder = two.folder / "little memory"
    two.alone("little memory", tmp_path)
    assert largest_difference(weights_in(folder), weights_in(tmp_path)) < 1e-5
    assert told_of(folder)["most_slots"] == told_of(folder, rank=1)["most_slots"] <= 60


def test_all_processes_stop_early_at_the_same_step_with_the_best_weights(two: Together) -> None:
    """In the second process the model seems to get better and better, as it could if processors round differently."""
    first, second = (told_of(two.folder / "better and better", rank) for rank in (0, 1))
    assert (first["best"]["step"], first["steps"]) == (2, 6)
    assert first["judged"] == pytest.approx(first["best"]["loss"], abs=1e-6)
    for what in ("steps", "best", "weights"):
        assert second[what] == first[what], what


def test_an_unknown_sharding_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ParamsError, match=r"(?s)CLOZELINE_SHARDING.*zero3.*ddp.*fsdp"):
        Processes.join({"CLOZELINE_SHARDING": "zero3"})


def test_muon_is_refused_where_no_process_has_a_whole_matrix() -> None:
    sharded = Processes(0, 2, CPU, sharding="fsdp")
    with pytest.raises(ParamsError, match=r"(?s)muon.*CLOZELINE_SHARDING"):
        sharded.check("muon")
    sharded.check("adamw")
    Processes.alone().check("muon")


# A node that is silent for 8 s counts as dead (by default 15 s; on a busy machine a living one may be silent), and the
# others wait 5 s more for further nodes (by default 30 s).
RENDEZVOUS = "last_call_timeout=5,keep_alive_interval=1,keep_alive_max_attempt=8"


def node(port: int, *arguments: Path, dies_at: int | None) -> "subprocess.Popen[str]":
    """Start torchrun of one node; the one that dies is not where the nodes meet."""
    options = ["--nnodes=1:2", "--nproc-per-node=1", "--max-restarts=2", "--monitor-interval=0.2"]
    options += ["--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-id=elastic"]
    options += ["--rdzv-conf", f"{RENDEZVOUS},is_host={str(dies_at is None).lower()}", "-m", two_ranks.__name__]
    return subprocess.Popen(
        [sys.executable, "-m", "torch.distributed.run", *options, *map(str, arguments)],
        cwd=PROJECT,
        env={**os.environ, "OMP_NUM_THREADS": "1", two_ranks.DIES: str(dies_at)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.mark.slow
def test_a_node_that_dies_changes_no_result(tiny_pretraining, tiny_tokens, tiny_tokenizer: Path, tmp_path) -> None:
    """P22, P29: the batch stays, so the one process that is left takes the rows of both."""
    steps = {"steps": 12, "log_every_steps": 1, "checkpoint_every_steps": 3, "optimizer__learning_rate": 1e-3}
    params = changed(tiny_pretraining, **steps)
    write_cases(tmp_path, {"gang": ("ddp", params)}, ["gang"])
    with held_ports() as free_port:
        port, where = free_port(), (tmp_path, tiny_tokens, tiny_tokenizer)
        lasting, dying = node(port, *where, dies_at=None), node(port, *where, dies_at=8)
        try:
            said, _ = lasting.communicate(timeout=600)
            dying.communicate(timeout=120)
        finally:
            for process in (lasting, dying):
                process.kill()
    assert (lasting.returncode, dying.returncode) == (0, -signal.SIGKILL), said
    told = told_of(tmp_path / "gang")
    assert (told["started_at"], told["steps"], told["world_sizes"]) == (6, 12, [2, 1]), said
    expected = two_ranks.train(params, tiny_tokens, tiny_tokenizer, tmp_path / "alone")
    assert told["losses"] == pytest.approx(expected["losses"], abs=1e-5)
    assert largest_difference(weights_in(tmp_path / "gang"), weights_in(tmp_path / "alone")) < 1e-5
