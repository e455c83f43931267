"""Trains a tiny model on as many processes as there are, and saves it; run by torchrun, or imported."""

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


if __name__ == "__main__":
    folder, tokens, tokenizer = map(Path, sys.argv[1:4])
    given = PretrainParams.model_validate_json((folder / "params.json").read_text(encoding="utf-8"))
    told = train(given, tokens, tokenizer, folder)
    if int(os.environ["RANK"]) == 0:
        (folder / "told.json").write_text(json.dumps(told), encoding="utf-8")
