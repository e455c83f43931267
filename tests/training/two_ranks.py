"""Run by torchrun: trains a tiny model on as many processes as there are, and saves it."""

import json
import sys
from pathlib import Path

from clozeline.params import PretrainParams
from clozeline.training import pretraining

if __name__ == "__main__":
    folder, tokens, tokenizer = map(Path, sys.argv[1:4])
    params = PretrainParams.model_validate_json((folder / "params.json").read_text(encoding="utf-8"))
    job = pretraining.prepare(params, seed=1, tokens=tokens, tokenizer=tokenizer, work=folder / "work")
    state = job.run()
    trained = job.trained(tokenizer, state)
    if job.is_first_process:
        trained.save(folder / "encoder")
        (folder / "losses.json").write_text(json.dumps([point.loss for point in state.curve]), encoding="utf-8")
