"""Run by torchrun: trains a tiny model on as many processes as there are, and saves it."""

import json
import sys
from pathlib import Path

from clozeline.params import PretrainParams
from clozeline.training import pretraining
from clozeline.training.callbacks import Callback
from clozeline.training.state import State


class Start(Callback):
    """Remembers where a training began or went on."""

    step = -1

    def on_start(self, state: State) -> None:
        self.step = state.step


if __name__ == "__main__":
    folder, tokens, tokenizer = map(Path, sys.argv[1:4])
    params = PretrainParams.model_validate_json((folder / "params.json").read_text(encoding="utf-8"))
    job = pretraining.prepare(params, seed=1, tokens=tokens, tokenizer=tokenizer, work=folder / "work")
    start = Start()
    state = job.run([start])
    trained = job.trained(tokenizer, state)
    if job.is_first_process:
        trained.save(folder / "encoder")
        told = {"started_at": start.step, "losses": [point.loss for point in state.curve]}
        (folder / "told.json").write_text(json.dumps(told), encoding="utf-8")
