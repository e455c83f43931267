"""A stage on a node of the cluster: the same command there, with its output and its exit code here."""

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import typer

from clozeline.cli import torchrun
from clozeline.cluster.address import VARIABLE, reachable_cluster, takes_whole_stages

_STAGES = {"pretrain", "evaluate", "finetune", "export", "import"}
"""Stages that run as a whole; `preprocess` and `tokenize` spread their tasks."""
_SIGNALLED = 128
"""Number that a shell adds to the signal that ended a process."""


def is_wanted(stage: str, environment: Mapping[str, str] = os.environ) -> bool:
    """Return whether to send the stage to the cluster; False on the node, where the variable is not set."""
    return stage in _STAGES and not torchrun.is_inside(environment) and takes_whole_stages(environment)


def run_stage(stage: str, arguments: list[str], seeds: Sequence[int] = ()) -> None:
    """Run the stage on a node.

    Several seeds of a fine-tuning are trained side by side first; the stage then goes on from their checkpoints.

    Raises:
        ClozelineError: it was killed there; or the cluster cannot be used, as in `ray_jobs.run_jobs`.
        typer.Exit: with the exit code of the stage, or of the signal that stopped us both.
    """
    address = reachable_cluster()
    assert address is not None
    from clozeline.cluster.ray_jobs import StoppedError, run_jobs
    from clozeline.orchestration.killed_stage import failure_of_killed, is_killed

    here = {name: value for name, value in os.environ.items() if name != VARIABLE} | {"PYTHONUNBUFFERED": "1"}
    command = [sys.executable, "-m", "clozeline", "stage", stage, *arguments]
    of_seeds = [[*command, f"only_seed={seed}"] for seed in seeds] if len(seeds) > 1 else []
    try:
        found = run_jobs(address, Path("work"), of_seeds, here, _write) if of_seeds else []
        if not any(one.exit_code for one in found):
            found = run_jobs(address, Path("work"), [command], here, _write)
    except StoppedError as stopped:
        raise typer.Exit(_SIGNALLED + stopped.number) from stopped
    ended = next((one for one in found if one.exit_code), found[0])
    if is_killed(ended.exit_code):
        task = next((f"@{value}" for name, _, value in (one.partition("=") for one in arguments) if name == "task"), "")
        where = f"the lines above (node {ended.node})"
        raise failure_of_killed(
            f"{stage}{task}", ended.exit_code, where, ended.out_of_memory_kills, ended.available_bytes
        )
    raise typer.Exit(ended.exit_code)


def _write(content: bytes) -> None:
    sys.stdout.buffer.write(content)
    sys.stdout.flush()
