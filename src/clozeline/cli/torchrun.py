"""A stage on several devices or machines: the same command in as many processes as the environment requests.

On a Ray cluster one command is enough: it places an agent on each node, which then runs the command of that node.
"""

import logging
import os
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn
from uuid import uuid4

import typer

from clozeline.cluster import address as cluster
from clozeline.errors import ParamsError, TransientError

VARIABLE = "CLOZELINE_TORCHRUN"
"""Arguments of torchrun, such as `--nproc-per-node 8`. Not a param, because devices do not change the result."""
_STAGES = {"pretrain", "evaluate", "finetune"}
_INSIDE = ("TORCHELASTIC_RUN_ID", "RANK")
_HERE = "127.0.0.1"
"""Default of --master-addr."""
_RESTARTS = "3"
"""Restarts after a lost node, where the arguments leave it open."""
_OURS = ("CLOZELINE_", "OMP_NUM_THREADS")
"""Variables that have the same values on each node of a gang."""
_SIGNALLED = 128
"""Number that a shell adds to the signal that ended a process."""


def is_wanted(stage: str, environment: Mapping[str, str] = os.environ) -> bool:
    """Return whether to start torchrun; False in the processes that it started, which do the training."""
    return stage in _STAGES and not is_inside(environment) and bool(environment.get(VARIABLE, "").strip())


def is_inside(environment: Mapping[str, str] = os.environ) -> bool:
    """Return whether torchrun started this process."""
    return any(name in environment for name in _INSIDE)


def end_at_once(exit_code: int) -> NoReturn:
    """End a process of a group that failed, without the interpreter's clean-up.

    Gloo's threads abort a process that ends as a member of a group, now and then, and its exit code is lost. A failed
    process cannot leave the group either, because leaving waits for the others.
    """
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(exit_code)


def refuse_for(command: str, environment: Mapping[str, str] = os.environ) -> None:
    """Refuse the variable for a command that trains in its own process.

    Raises:
        ParamsError: the variable is set.
    """
    if given := environment.get(VARIABLE, "").strip():
        raise ParamsError(
            f"`clozeline {command}` trains in one process",
            given=f'{VARIABLE}="{given}"',
            expected="no such variable: it is for `clozeline run`, `dvc repro` and `clozeline stage`",
            do=f"run `env -u {VARIABLE} clozeline {command} …`",
        )


def run_stage(stage: str, arguments: list[str], torchrun_arguments: str) -> None:
    """Run the stage under torchrun, which passes signals on to its processes and waits for them.

    With `CLOZELINE_CLUSTER`, and no place to meet among the arguments, Ray starts it on as many nodes as they say.

    Raises:
        ParamsError: the arguments for a gang are no numbers.
        ClusterError: a node of the cluster is not like this machine, or there are too few.
        TransientError: the machines do not find each other.
        typer.Exit: with the exit code of the process that failed first, so that a caller can tell errors apart.
    """
    from torch.distributed import run
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.elastic.rendezvous import RendezvousError

    head = cluster.cluster_address()
    if head is not None and _is_for_gang(torchrun_arguments):
        raise typer.Exit(_run_gang(head, [stage, *arguments], torchrun_arguments))
    command = [*shlex.split(torchrun_arguments), "-m", "clozeline", "stage", stage, *arguments]
    try:
        run.main(command)
    except ChildFailedError as error:
        _, failure = error.get_first_failure()
        raise typer.Exit(failure.exitcode if failure.exitcode >= 0 else _SIGNALLED - failure.exitcode) from error
    except SignalException as error:
        raise typer.Exit(_SIGNALLED + error.sigval) from error
    except RendezvousError as error:
        raise TransientError(
            "the machines that train together do not find each other",
            given=f'{VARIABLE}="{torchrun_arguments}": {error}',
            expected="as many machines as --nnodes says, with one --rdzv-endpoint that all of them reach",
            do="start the same command on each machine, the one of the endpoint first, and open its port to the others",
        ) from error


def _is_for_gang(torchrun_arguments: str) -> bool:
    """Return whether several nodes are asked for, but not where they meet, which whoever starts each by hand says."""
    from torch.distributed import run

    options = run.get_args_parser().parse_args([*shlex.split(torchrun_arguments), "-"])
    meeting = (options.rdzv_endpoint, options.node_rank, options.standalone, options.master_addr != _HERE)
    return options.nnodes not in ("1", "1:1") and not any(meeting)


def _run_gang(head: str, stage: list[str], torchrun_arguments: str) -> int:
    """Run the command of each node on nodes of the cluster; they meet here, at the process that outlives them all."""
    from torch.distributed import TCPStore, run  # type: ignore[attr-defined]  # documented, but not in its __all__

    given = shlex.split(torchrun_arguments)
    options = run.get_args_parser().parse_args([*given, "-"])
    try:
        least, most = run.parse_min_max_nnodes(options.nnodes)
        processes = int(options.nproc_per_node)
        if not (0 < least <= most and processes > 0):
            raise ValueError(options.nnodes)
    except (ValueError, RuntimeError) as error:
        raise ParamsError(
            "a gang needs the number of nodes and of processes on each",
            given=f'{VARIABLE}="{torchrun_arguments}"',
            expected='numbers, such as "--nnodes 1:2 --nproc-per-node 8": one or two nodes, 8 processes on each',
            do=f"correct {VARIABLE}",
        ) from error
    if head != cluster.AUTO:
        cluster.check_reachable(head)  # before the import of Ray, which takes seconds
    from clozeline.cluster.ray_gang import Size, placed_gang

    with placed_gang(head, Path.cwd(), Size(least, most, processes)) as gang:
        store = TCPStore(gang.host, 0, is_master=True, wait_for_workers=False)
        meeting = ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"{gang.host}:{store.port}", "--rdzv-id", uuid4().hex]
        meeting += ["--rdzv-conf", ",".join(filter(None, ["is_host=false", options.rdzv_conf]))]
        size = ["--nnodes", f"{least}:{gang.num_nodes}"]
        all_of_it = shlex.join(["--max-restarts", _RESTARTS, *given, *size, *meeting])
        own = {name: value for name, value in os.environ.items() if name.startswith(_OURS)}
        command = [sys.executable, "-m", "clozeline", "stage", *stage]
        environment = {**own, VARIABLE: all_of_it, cluster.VARIABLE: ""}
        return gang.run(command, environment, _show)


def _show(output: bytes) -> None:
    sys.stderr.buffer.write(output)
    sys.stderr.buffer.flush()
