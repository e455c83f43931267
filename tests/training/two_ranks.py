"""Trains tiny models on as many processes as there are, and saves them; run by torchrun, or imported."""

import json
import os
import sys
from pathlib import Path
from typing import Any

from clozeline.params import PretrainParams
from clozeline.training import pretraining
from clozeline.training.callbacks import Callback
from clozeline.training.state import State


class Start(Callback):
    """Remembers where a training began or went on."""

    step = -1

    def on_start(self, state: State) -> None:
        self.step = state.step


def train(params: PretrainParams, tokens: Path, tokenizer: Path, folder: Path) -> dict[str, Any]:
    """Where the training began, and its losses; the first process writes `encoder/` into `folder`."""
    job = pretraining.prepare(params, seed=1, tokens=tokens, tokenizer=tokenizer, work=folder / "work")
    start = Start()
    state = job.run([start])
    trained = job.trained(tokenizer, state)
    if job.is_first_process:
        trained.save(folder / "encoder")
    return {"started_at": start.step, "losses": [point.loss for point in state.curve]}


def train_each(folder: Path, tokens: Path, tokenizer: Path) -> None:
    """`cases.json` in `folder` says what, one after another; the first process writes what it was told of each."""
    for case in json.loads((folder / "cases.json").read_text(encoding="utf-8")):
        os.environ["CLOZELINE_SHARDING"] = case["sharding"]
        sys.stderr.write(f"{case['name']}\n")  # says in which one an error or a hang was
        told = train(PretrainParams.model_validate(case["params"]), tokens, tokenizer, folder / case["name"])
        if int(os.environ["RANK"]) == 0:
            (folder / case["name"] / "told.json").write_text(json.dumps(told), encoding="utf-8")


if __name__ == "__main__":
    train_each(*map(Path, sys.argv[1:4]))
