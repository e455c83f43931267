"""Several processes on the CPU of this machine, with the engines that several machines use."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from clozeline.encoder.families import FAMILIES, LAYOUTS
from clozeline.params.pretraining import PretrainParams
from clozeline.system.errors import ParamsError
from clozeline.training.distribution import Processes
from tests.make.projects import PROJECT
from tests.make.servers import held_ports
from tests.training import dying_node, two_ranks
from tests.training.prepared import changed

SCRIPT = Path(two_ranks.__file__)
SHARDINGS = ("ddp", "fsdp")

Weights = dict[str, torch.Tensor]
Trained = tuple[Weights, dict[str, Any]]
"""Weights, and the first process's report of the training."""


def cases_of(small: PretrainParams) -> dict[str, tuple[str, PretrainParams]]:
    """Return name → how models are divided, and params."""
    worse = changed(
        small, optimizer__learning_rate=5.0, schedule__warmup_fraction=0.9
    )  # later validation losses are worse
    best = changed(worse, validation__every_steps=2, validation__patience=50)
    few_rows = changed(small, batch_tokens=32)
    brief = changed(small, steps=3, log_every_steps=1, schedule__warmup_fraction=0.3)
    detecting = {"objective": "rtd", "model__family": "electra"}
    return {
        "ddp": ("ddp", small),
        "fsdp": ("fsdp", small),
        "detecting": ("ddp", changed(small, **detecting)),
        "in parts": ("ddp", changed(small, checkpoint_every_steps=5, micro_batch_tokens=100)),
        "in shards": ("ddp", changed(small, checkpoint_every_steps=5)),
        "in shards, divided": ("fsdp", changed(small, checkpoint_every_steps=5)),
        "few rows": ("ddp", few_rows),
        "few rows, detecting": ("ddp", changed(few_rows, **detecting)),
        "few rows in parts, divided": ("fsdp", changed(small, batch_tokens=100, micro_batch_tokens=32)),
        "little memory": ("ddp", brief),
        "better and better": ("ddp", changed(worse, validation__every_steps=2, validation__patience=2)),
        "best kept, divided": ("fsdp", changed(best, checkpoint_every_steps=50)),
        "best kept, divided, with checkpoints": ("fsdp", changed(best, checkpoint_every_steps=5)),
        "best kept, in shards": ("fsdp", changed(best, checkpoint_every_steps=5)),
        **{
            f"{family} {sharding}": (sharding, changed(brief, model__family=family))
            for family in FAMILIES
            for sharding in SHARDINGS
        },
    }


class Together:
    """Results of two processes for each case; one start serves all cases, since it takes longer than they do."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.cases: dict[str, tuple[str, PretrainParams]] = {}

    def run(self, cases: dict[str, tuple[str, PretrainParams]], tokens: Path, tokenizer: Path) -> None:
        again = ("best kept, divided, with checkpoints", "best kept, in shards")
        told = [
            {"name": name, "sharding": cases[name][0], "params": cases[name][1].model_dump()}
            for name in [*cases, *again]  # the second run of `again` goes on from its newest checkpoint
        ]
        (self.folder / "cases.json").write_text(json.dumps(told), encoding="utf-8")
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
        result = subprocess.run(
            [*torchrun, str(SCRIPT), str(self.folder), str(tokens), str(tokenizer)],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            timeout=900,
        )
        assert result.returncode == 0, result.stderr
        self.cases = cases

    def trained(self, name: str) -> Trained:
        return read(self.folder / name)


def read(folder: Path) -> Trained:
    return load_file(folder / "encoder" / "model.safetensors"), told_of(folder, rank=0)


def told_of(folder: Path, rank: int) -> dict[str, Any]:
    told: dict[str, Any] = json.loads((folder / f"told-{rank}.json").read_text(encoding="utf-8"))
    return told


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Together:
    return Together(tmp_path_factory.mktemp("two"))


@pytest.fixture
def two(started: Together, tiny_pretraining: PretrainParams, tiny_tokens: Path, tiny_tokenizer: Path) -> Together:
    if not started.cases:
        # At this learning rate Adam does not amplify rounding in a few steps.
        small = changed(tiny_pretraining, steps=12, log_every_steps=3, optimizer__learning_rate=1e-3)
        started.run(cases_of(small), tiny_tokens, tiny_tokenizer)
    return started


@pytest.fixture
def alone(two: Together, tiny_tokens: Path, tiny_tokenizer: Path, tmp_path: Path) -> "Alone":
    return Alone(two, tiny_tokens, tiny_tokenizer, tmp_path / "alone")


class Alone:
    """`alone(name)`: the same case in this process, in a folder of its own or in one where it was begun."""

    def __init__(self, two: Together, tokens: Path, tokenizer: Path, folder: Path) -> None:
        self._two, self._tokens, self._tokenizer, self.folder = two, tokens, tokenizer, folder

    def __call__(self, name: str, folder: Path | None = None) -> Trained:
        folder = folder or self.folder
        folder.mkdir(exist_ok=True)
        told = two_ranks.train(self._two.cases[name][1], self._tokens, self._tokenizer, folder)
        return load_file(folder / "encoder" / "model.safetensors"), told


def largest_difference(one: Weights, other: Weights) -> float:
    assert one.keys() == other.keys()
    return max((one[name] - other[name]).abs().max().item() for name in one)


@pytest.mark.parametrize("name", ["ddp", "fsdp"])
def test_two_processes_end_with_the_parameters_of_a_single_one(two: Together, alone: Alone, name: str) -> None:
    """P22: each takes half of a batch's rows, so one process with the doubled half is the same params alone.

    P6, P27: masks and learning rate do not depend on the number of processes; the logged loss is that of all.
    """
    weights, told = two.trained(name)
    one_weights, one_told = alone(name)
    assert largest_difference(weights, one_weights) < 1e-5
    assert told["losses"] == pytest.approx(one_told["losses"], abs=1e-5)


@pytest.mark.parametrize("name", [f"{family} {sharding}" for family in FAMILIES for sharding in SHARDINGS])
def test_two_processes_train_every_family_like_one_process(two: Together, alone: Alone, name: str) -> None:
    """P22: also where a loss does not depend on some weights, and where lists of layers hold lists of layers."""
    assert largest_difference(two.trained(name)[0], alone(name)[0]) < 1e-5


@pytest.mark.parametrize("name", ["few rows", "few rows, detecting", "few rows in parts, divided"])
def test_batches_with_fewer_rows_than_processes_train_like_one_process(two: Together, alone: Alone, name: str) -> None:
    weights, told = two.trained(name)
    one_weights, one_told = alone(name)
    assert largest_difference(weights, one_weights) < 1e-5
    assert told["losses"] == pytest.approx(one_told["losses"], abs=1e-4)
    assert told["accuracies"] == pytest.approx(one_told["accuracies"], abs=0.01)


def test_two_processes_train_replaced_token_detection_like_one_process(two: Together, alone: Alone) -> None:
    """P22: two models that share a table, of which half the rows of a batch are in each process."""
    _, told = two.trained("detecting")
    _, one_told = alone("detecting")
    for file in ("model.safetensors", "generator/model.safetensors"):
        one, both = (load_file(folder / "encoder" / file) for folder in (alone.folder, two.folder / "detecting"))
        assert largest_difference(one, both) < 1e-5
    assert told["losses"] == pytest.approx(one_told["losses"], abs=1e-4)
    assert told["accuracies"] == pytest.approx(one_told["accuracies"], abs=0.01)


@pytest.mark.parametrize("name", ["in parts", "in shards", "in shards, divided"])
def test_one_process_can_resume_a_training_of_two_processes(two: Together, alone: Alone, name: str) -> None:
    """A checkpoint holds the whole state, whichever process wrote it, in one file or in one of each process."""
    (newest,) = two.folder.glob(f"{name}/work/*/step-000000010")
    assert len(list(newest.glob("*.distcp"))) == (2 if "in shards" in name else 0)
    finished, told = alone(name, two.folder / name)
    assert told["started_at"] == 10, "it resumes from the checkpoint of both"
    whole, _ = alone(name)
    assert largest_difference(finished, whole) < 1e-5


@pytest.mark.parametrize("name", ["best kept, divided, with checkpoints", "best kept, in shards"])
def test_a_sharded_model_returns_its_best_weights(two: Together, name: str) -> None:
    """The best validation pass precedes the checkpoint, which holds its whole weights."""
    finished, told = two.trained(name)
    whole, _ = two.trained("best kept, divided")
    assert told["started_at"] == 10
    assert largest_difference(finished, whole) == 0.0


def test_a_checkpoint_of_a_sharded_model_in_one_file_has_its_whole_weights(two: Together) -> None:
    whole, _ = two.trained("best kept, divided")
    (state,) = two.folder.glob("best kept, divided, with checkpoints/work/*/step-000000010/state.pt")
    kept = torch.load(state, weights_only=True)["best_weights"]
    published = LAYOUTS["modernbert"].published(kept, None, "mlm")
    named = {published[name]: weight for name, weight in kept.items()}
    assert largest_difference({name: named[name] for name in whole}, whole) == 0.0


def test_running_out_of_memory_in_one_process_halves_the_micro_batches_of_all(two: Together, alone: Alone) -> None:
    """The second process runs out in a backward pass; the first learns of it before waiting for the sum."""
    assert largest_difference(two.trained("little memory")[0], alone("little memory")[0]) < 1e-5
    first, second = (told_of(two.folder / "little memory", rank)["most_slots"] for rank in (0, 1))
    assert first == second <= 60


def test_all_processes_stop_early_at_the_same_step_with_the_best_weights(two: Together) -> None:
    """In the second process the model seems to get better and better, as it could if processors round differently."""
    first, second = (told_of(two.folder / "better and better", rank) for rank in (0, 1))
    assert (first["best"]["step"], first["steps"]) == (2, 6)
    assert first["judged"] == pytest.approx(first["best"]["loss"], abs=1e-6)
    for what in ("steps", "best", "weights"):
        assert second[what] == first[what], what


def test_a_single_process_has_rank_0_of_1() -> None:
    processes = Processes.join({})
    assert (processes.rank, processes.world_size, processes.is_first) == (0, 1, True)


def test_an_unknown_sharding_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ParamsError, match=r"(?s)CLOZELINE_SHARDING.*zero3.*ddp.*fsdp"):
        Processes.join({"CLOZELINE_SHARDING": "zero3"})


def test_muon_is_refused_where_no_process_has_a_whole_matrix() -> None:
    sharded = Processes(0, 2, torch.device("cpu"), sharding="fsdp")
    with pytest.raises(ParamsError, match=r"(?s)muon.*CLOZELINE_SHARDING"):
        sharded.check("muon")
    sharded.check("adamw")
    Processes.alone().check("muon")


RENDEZVOUS = "last_call_timeout=5,keep_alive_interval=1,keep_alive_max_attempt=8"
"""A node that is silent for 8 s counts as dead (by default 15 s; on a busy machine a living one may be silent),
and the others wait 5 s more for further nodes (by default 30 s).
"""


def node(folder: Path, port: int, *arguments: Path, dies_at: int | None) -> "subprocess.Popen[str]":
    """Start torchrun of one node; the one that dies is not where the nodes meet."""
    is_host = str(dies_at is None).lower()
    options = ["--nnodes=1:2", "--nproc-per-node=1", "--max-restarts=2", "--monitor-interval=0.2"]
    meeting = ["--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-id=elastic"]
    meeting += ["--rdzv-conf", f"{RENDEZVOUS},is_host={is_host}"]
    return subprocess.Popen(
        [sys.executable, "-m", "torch.distributed.run", *options, *meeting, "-m", dying_node.__name__]
        + [str(argument) for argument in (folder, *arguments)],
        cwd=PROJECT,
        env={**os.environ, "OMP_NUM_THREADS": "1", **({dying_node.DIES: str(dies_at)} if dies_at else {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.mark.slow
def test_a_training_that_loses_a_node_ends_like_an_undisturbed_one(
    tiny_pretraining: PretrainParams, tiny_tokens: Path, tiny_tokenizer: Path, tmp_path: Path
) -> None:
    """P22, P29: the batch stays, so the one process that is left takes the rows of both."""
    params = changed(
        tiny_pretraining, steps=12, log_every_steps=1, checkpoint_every_steps=3, optimizer__learning_rate=1e-3
    )
    gang, alone = tmp_path / "gang", tmp_path / "alone"
    for folder in (gang, alone):
        folder.mkdir()
    (gang / "params.json").write_text(params.model_dump_json(), encoding="utf-8")
    with held_ports() as free_port:
        port = free_port()
        lasting = node(gang, port, tiny_tokens, tiny_tokenizer, dies_at=None)
        dying = node(gang, port, tiny_tokens, tiny_tokenizer, dies_at=8)
        try:
            said, _ = lasting.communicate(timeout=600)
            dying.communicate(timeout=120)
        finally:
            for process in (lasting, dying):
                process.kill()
    assert (lasting.returncode, dying.returncode) == (0, -signal.SIGKILL), said
    told = told_of(gang, rank=0)
    assert (told["started_at"], told["steps"], told["world_sizes"]) == (6, 12, [2, 1]), said
    expected = two_ranks.train(params, tiny_tokens, tiny_tokenizer, alone)
    assert told["losses"] == pytest.approx(expected["losses"], abs=1e-5)
    one, other = (load_file(folder / "encoder/model.safetensors") for folder in (gang, alone))
    assert largest_difference(one, other) < 1e-5
