"""A node of an elastic training, started by its torchrun; one of two dies in the middle, with its torchrun."""

import json
import os
import signal
import sys
import time
from pathlib import Path

from clozeline.params.pretraining import PretrainParams
from clozeline.training.curves import CurvePoint
from clozeline.training.state import Callback
from tests.training import two_ranks

DIES = "DIES_AT_STEP"
"""Environment variable of the node that dies."""


class Dies(Callback):
    """Kills this process, and torchrun first, which would restart it."""

    def on_point(self, point: CurvePoint) -> None:
        if str(point.step) == os.environ.get(DIES):
            for process in (os.getppid(), os.getpid()):
                os.kill(process, signal.SIGKILL)


def run(folder: Path, tokens: Path, tokenizer: Path) -> None:
    """Train the params in `folder`; each process writes its report there, named by its rank."""
    params = PretrainParams.model_validate_json((folder / "params.json").read_bytes())
    rank = os.environ["RANK"]
    while os.environ["WORLD_SIZE"] == "1" and not list(folder.glob("work/*/step-*")):
        time.sleep(0.2)  # the other node is late: torchrun starts this process again when it comes
    told = two_ranks.train(params, tokens, tokenizer, folder, Dies())
    (folder / f"told-{rank}.json").write_text(json.dumps(told), encoding="utf-8")


if __name__ == "__main__":
    run(*map(Path, sys.argv[1:4]))
