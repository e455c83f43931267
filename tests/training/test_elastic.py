"""A node dies, and the training goes on from its newest checkpoint on the nodes that are left."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.torch import load_file

from clozeline.params.pretraining import PretrainParams
from tests.make.projects import PROJECT
from tests.make.servers import held_ports
from tests.training import dying_node, two_ranks
from tests.training.changes import changed
from tests.training.test_distribution import largest_difference, told_of

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
