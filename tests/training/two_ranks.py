"""Trains tiny models on as many processes as there are, and saves them; run by torchrun, or imported."""

import itertools
import json
import os
import signal
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from clozeline.language.objectives import TargetBatch
from clozeline.params.pretraining import PretrainParams
from clozeline.pretraining import job as pretraining
from clozeline.pretraining.losses import Judge, TargetLoss
from clozeline.training.curves import CurvePoint, Quality
from clozeline.training.state import Callback, Scored, State

# Environment variable of a node that dies.
DIES = "DIES_AT_STEP"


class Node(Callback):
    """Records the step at which a training started or resumed. Where a node is to die, it kills this process, and
    torchrun first, which would restart it.
    """

    started_at = -1

    def on_start(self, state: State) -> None:
        self.started_at = state.step

    def on_point(self, point: CurvePoint) -> None:
        if str(point.step) == os.environ.get(DIES):
            for process in (os.getppid(), os.getpid()):
                os.kill(process, signal.SIGKILL)


def train(params: PretrainParams, tokens: Path, tokenizer: Path, folder: Path) -> dict[str, Any]:
    """Train, and return how the training went; the first process writes `encoder/` into `folder`."""
    job = pretraining.prepare(params, seed=1, tokens=tokens, tokenizer=tokenizer, work=folder / "work")
    node = Node()
    state = job.run([node])
    trained = job.trained(tokenizer, state)
    if job.is_first_process:
        trained.save(folder / "encoder")
    best = state.best_validation
    return {
        "started_at": node.started_at,
        "losses": [point.loss for point in state.curve],
        "accuracies": [point.accuracy for point in state.curve],
        "steps": state.step,
        "world_sizes": state.world_sizes,
        "most_slots": job.loop.hardware.micro_batches.most_slots,
        "best": best and asdict(best),
        "judged": best and job.judge.measure().loss,
        "weights": digest(trained.model.state_dict()) if trained.weights is None else None,  # sharded weights
    }


def digest(weights: Mapping[str, Tensor]) -> str:
    return sha256(b"".join(weights[name].numpy().tobytes() for name in sorted(weights))).hexdigest()


def little_memory(patch: pytest.MonkeyPatch) -> None:
    """Make memory run out at the very end of each backward pass of more than 60 tokens."""
    forward = TargetLoss.forward

    def greedy(self: TargetLoss, batch: TargetBatch) -> Scored:
        if torch.is_grad_enabled() and batch.num_slots > 60:
            run_out_in_the_end(self.model.get_input_embeddings().weight)
        return forward(self, batch)

    patch.setattr(TargetLoss, "forward", greedy)


def run_out_in_the_end(first: Tensor) -> None:
    def run_out(gradient: Tensor) -> None:
        hook.remove()
        raise torch.OutOfMemoryError("no memory")

    hook = first.register_hook(run_out)


def better_and_better(patch: pytest.MonkeyPatch) -> None:
    """Divide the n-th validation figures by 2 ** n, so that the model seems to get better and better."""
    measure, count = Judge.measure, itertools.count(1)
    patch.setattr(Judge, "measure", lambda judge: Quality(*(np.array(measure(judge)) / 2 ** next(count)).tolist()))


# Name of a case → the fault that it causes in the second process alone.
TROUBLES = {"little memory": little_memory, "better and better": better_and_better}


def train_each(folder: Path, tokens: Path, tokenizer: Path) -> None:
    """Train the cases of `cases.json` in `folder` one after another; each process writes its report of each case."""
    rank = int(os.environ["RANK"])
    for case in json.loads((folder / "cases.json").read_text(encoding="utf-8")):
        own = folder / case["name"]
        os.environ["CLOZELINE_SHARDING"] = case["sharding"]
        sys.stderr.write(f"{case['name']}\n")  # shows which case failed or hung
        while os.environ["WORLD_SIZE"] == "1" and not list(own.glob("work/*/step-*")):
            time.sleep(0.2)  # the other node is late: torchrun starts this process again when it comes
        with pytest.MonkeyPatch.context() as patch:
            if "in shards" in case["name"]:
                patch.setattr("clozeline.training.loop.SHARDED_ABOVE_BYTES", 0)
            if rank == 1 and case["name"] in TROUBLES:
                TROUBLES[case["name"]](patch)
            told = train(PretrainParams.model_validate(case["params"]), tokens, tokenizer, own)
        own.mkdir(exist_ok=True)
        (own / f"told-{rank}.json").write_text(json.dumps(told), encoding="utf-8")


if __name__ == "__main__":
    train_each(*map(Path, sys.argv[1:4]))
