"""Forget a text in a project until that ends, killing it (-9) later each time.

`python -m tests.killed_forgetting ROOT TEXT` prints, as JSON, how often it was killed.
"""

import json
import sys
from functools import partial
from itertools import count, takewhile
from pathlib import Path

from clozeline.orchestration.forgetting import forget
from clozeline.system.workspace import Workspace
from tests.killed_sweeps import is_killed_at

_CHANGED = (
    ".dvc/cache/",
    "store/",
    "/mlflow/artifacts",
    "/data/",
    "work/logs",
    "work/search",
    "/imports/",
    "/forgotten.lock",
)

if __name__ == "__main__":
    root, text = Path(sys.argv[1]), sys.argv[2]
    forget_text = partial(forget, Workspace(root), text, 20_000, is_dry=False)
    kills = takewhile(lambda number: is_killed_at(2**number, forget_text, _CHANGED), count())
    sys.stdout.write(f"\n{json.dumps(sum(1 for _ in kills))}\n")  # below what DVC says
