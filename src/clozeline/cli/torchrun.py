"""A stage on several devices or machines: the same command in as many processes as the environment requests."""

import os
import shlex
from collections.abc import Mapping

import typer

from clozeline.errors import ParamsError, TransientError

VARIABLE = "CLOZELINE_TORCHRUN"
"""Arguments of torchrun, such as `--nproc-per-node 8`. Not a param, because devices do not change the result."""
_STAGES = {"pretrain", "evaluate", "finetune"}
_INSIDE = ("TORCHELASTIC_RUN_ID", "RANK")
_SIGNALLED = 128
"""Number that a shell adds to the signal that ended a process."""


def is_wanted(stage: str, environment: Mapping[str, str] = os.environ) -> bool:
    """Return whether to start torchrun; False in the processes that it started, which do the training."""
    return stage in _STAGES and not is_inside(environment) and bool(environment.get(VARIABLE, "").strip())


def is_inside(environment: Mapping[str, str] = os.environ) -> bool:
    """Return whether torchrun started this process."""
    return any(name in environment for name in _INSIDE)


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

    Raises:
        TransientError: the machines do not find each other.
        typer.Exit: with the exit code of the process that failed first, so that a caller can tell errors apart.
    """
    from torch.distributed import run
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.elastic.rendezvous import RendezvousError

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
