"""`clozeline stage`: the command that dvc.yaml calls."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Final

import typer

from clozeline.api.knobs import in_params
from clozeline.api.stage_call import arguments_for, section_of, stage_named
from clozeline.cli import cluster_job, torchrun
from clozeline.cli.start import start_folder
from clozeline.errors import ClozelineError
from clozeline.machine.cores import are_limited, available_cores
from clozeline.params import Params, read_params
from clozeline.tracking.tensorboard_log import require_tensorboard

PARAMS = Path("params.yaml")
_OWN_OUTPUTS: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {"tokenize": ("tokenizer", "out"), "pretrain": ("out",)}
)
"""Paths that a stage writes, by stage that may begin with a model; for `dvc repro` without the flow."""


def add_to(app: typer.Typer) -> None:
    app.command(name="stage", rich_help_panel="Called by dvc.yaml")(stage)


def stage(
    name: Annotated[str, typer.Argument(help="A stage: a file of clozeline/stages.")],
    arguments: Annotated[list[str], typer.Argument(help="Its paths (and task or model), as name=value.")],
) -> None:
    """Run one stage with its section of params.yaml. Called by `dvc repro`, rarely by hand.

    With `CLOZELINE_TORCHRUN="--nproc-per-node 8"` in the environment, `pretrain`, `evaluate` and `finetune` run in 8
    processes, one for each GPU of this machine; with more of torchrun's arguments, on several machines that may fail,
    which Ray finds if `CLOZELINE_CLUSTER` names a cluster (docs/pretraining.md). Without it, a stage runs on a node of
    that cluster, or spreads its tasks (docs/cluster.md).

    Example: `clozeline stage tokenize clean=data/clean out=data/tokens …`
    """
    # Threads that spin while they wait take cores from working threads: on a busy machine they make torch 2.5 times
    # slower. OpenMP reads this variable when torch is loaded, so it is set before the stage is imported.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    require_tensorboard()
    params = read_params(PARAMS)
    start = start_folder(params, fetches=any(text.startswith("start=") for text in arguments))
    if torchrun.is_wanted(name):
        torchrun.run_stage(name, arguments, os.environ[torchrun.VARIABLE])
        return
    if cluster_job.is_wanted(name):
        cluster_job.run_stage(name, arguments, _seeds(name, params, arguments))
        return
    if are_limited():
        _limit_threads(available_cores())
    from clozeline.contract.before_training import under_contract
    from clozeline.versions.own_outputs import refuse_own_outputs

    run = stage_named(name)
    given = arguments_for(run, name, params, arguments, start=start)
    refuse_own_outputs(params.starting_models, [given[out] for out in _OWN_OUTPUTS.get(name, ())], Path.cwd())
    if name == "pretrain":
        from clozeline.planning.warning import warn_of_memory

        given["before_first_step"] = warn_of_memory
    try:
        # Of several processes the first one checks the contract and writes its record.
        is_first = os.environ.get("RANK", "0") == "0"
        with under_contract(name if is_first else "", given.get("task"), given.get("data"), params, Path.cwd()):
            run(**given)
        if torchrun.is_inside():
            from clozeline.processes.group import leave  # brings torch, which not every stage needs

            leave()
    except ClozelineError as error:
        place = ".".join(filter(None, (section_of(name), given.get("task"))))
        raise in_params(error, PARAMS, place, given["params"]) from error


def _limit_threads(cores: int) -> None:
    """Limit the threads of numpy, which is loaded, and of torch, which reads the variable when it is loaded."""
    from threadpoolctl import threadpool_limits  # an extra brings it

    threads = os.environ.setdefault("OMP_NUM_THREADS", str(cores))
    threadpool_limits(int(threads), user_api="blas")


def _seeds(stage: str, params: Params, arguments: Sequence[str]) -> range:
    """Return the seeds of a fine-tuning; none of other stages."""
    task = next((text.removeprefix("task=") for text in arguments if text.startswith("task=")), "")
    section = params.finetune.get(task) if stage == "finetune" else None
    return range(0) if section is None else range(params.seed, params.seed + section.num_seeds)
