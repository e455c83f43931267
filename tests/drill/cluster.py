"""Kill a raylet, then the head, while a corpus is made on two raylets; start the cluster and repeat the command.

Each execution of a task is written down, so that the audit sees one that ran although it was recorded.
"""

import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import psutil

from tests.cluster.raylets import cluster_of_two, kill_raylet
from tests.conftest import PROJECT
from tests.drill.executions import executions, params_of_text, repeated
from tests.drill.kills import Tally
from tests.drill.project import orphans
from tests.make.processes import wait_for
from tests.make.tasks import contents
from tests.make.texts import take_snapshot

RUN: Final = """
import sys
from pathlib import Path
from clozeline.cluster import ledger
from clozeline.stages import preprocess, tokenize
from tests.drill import executions

ledger._recorded = executions.recorded
params, made, work = executions.params_of_text(), Path(sys.argv[1]), Path(sys.argv[1] + "-work")
preprocess.run(
    params.preprocess, seed=params.seed, raw=Path("raw"), forgotten=Path("forgotten.lock"), out=made / "clean",
    metrics=made / "preprocess.json", work=work / "preprocess",
)
tokenize.run(
    params.tokenize, clean=made / "clean", tokenizer=made / "tokenizer", out=made / "tokens",
    metrics=made / "tokenize.json", work=work / "tokenize",
)
"""
_LONGEST_SECONDS: Final = 3600.0


def drill_cluster(folder: Path, rounds: int, seed: int, megabytes: int, tally: Tally) -> None:
    """Kill a raylet and then the head in each round, each when a random task is done."""
    chance = random.Random(seed)
    folder.mkdir()
    _write_text(folder / "texts.jsonl", megabytes, chance)
    take_snapshot(params_of_text().preprocess.source, folder / "texts.jsonl", folder / "raw")
    shutil.copy(PROJECT / "forgotten.lock", folder)
    alone = _start(folder, "reference", {})
    assert alone.wait(_LONGEST_SECONDS) == 0, _said(folder)
    num_tasks = len(executions(folder, "reference"))
    for number in range(rounds):
        moments = sorted(chance.sample(range(1, num_tasks), 2))
        fault = "; ".join(_round(folder, f"round-{number}", moments, tally))
        is_same = contents(folder / f"round-{number}") == contents(folder / "reference")
        tally.add_round(orphans(folder), is_same=is_same, fault=fault)


def _round(folder: Path, name: str, moments: list[int], tally: Tally) -> list[str]:
    """Run the stages on a cluster that loses a raylet and its head, then on another; return what went wrong."""
    with cluster_of_two(folder / "raylets.log") as cluster:
        head, node = cluster.nodes
        stages = _start(folder, name, cluster.environment)
        kills = {"a raylet": lambda: kill_raylet(node), "the head": lambda: _kill(head)}
        for number, (what, kill) in enumerate(kills.items()):
            wait_for(
                lambda n=number: len(executions(folder, name)) >= moments[n] or stages.poll() is not None,
                _LONGEST_SECONDS,
            )
            if stages.poll() is None:
                tally.kills[f"{what} of a cluster"] += 1
                kill()
        ended = stages.wait(_LONGEST_SECONDS)
    done = len(executions(folder, name))
    if ended:
        with cluster_of_two(folder / "raylets.log") as cluster:
            ended = _start(folder, name, cluster.environment).wait(_LONGEST_SECONDS)
    again = repeated(executions(folder, name))
    sys.stdout.write(f"{name}: killed after tasks {moments}, {done} tasks before the second start, {again} repeated\n")
    return [
        *([f"{name} ended with {ended}: {_said(folder)[-3000:]}"] if ended else []),
        *(f"{name}: {task} ran although it was recorded" for task in again),
    ]


def _kill(node: psutil.Process) -> None:
    """Kill all processes of a node but `ray start`, which then ends."""
    for process in node.children(recursive=True):
        process.kill()


def _start(folder: Path, name: str, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    ours = {key: value for key, value in os.environ.items() if key != "CLOZELINE_CLUSTER"}
    with (folder / "said").open("ab") as said:
        return subprocess.Popen(
            [sys.executable, "-c", RUN, name],
            cwd=folder,
            env={**ours, "PYTHONPATH": str(PROJECT), **environment},
            stdout=said,
            stderr=said,
        )


def _said(folder: Path) -> str:
    return (folder / "said").read_text(errors="replace")


def _write_text(path: Path, megabytes: int, chance: random.Random) -> None:
    """Write texts of random words; a tenth of them repeat another one, changed at the end."""
    vocabulary = ["".join(chance.choices("abcdefghijklmnop", k=chance.randint(2, 9))) for _ in range(20_000)]
    before = ""
    with path.open("w", encoding="utf-8") as file:
        while file.tell() < megabytes * 1_000_000:
            is_new = not before or chance.random() < 0.9
            before = " ".join(chance.choices(vocabulary, k=chance.randint(20, 200))) if is_new else f"{before} and more"
            file.write(json.dumps({"text": before}) + "\n")
