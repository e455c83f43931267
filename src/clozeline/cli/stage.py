"""`clozeline stage`: the command that dvc.yaml calls.

A stage may run on several devices or machines: the same command in as many processes as the environment requests. On a
Ray cluster one command is enough: it places an agent on each node, which runs the command of that node. A stage may
also run on one node of the cluster, with its output and its exit code here.

A stage that DVC runs without the flow gets the encoder that start.lock names.
"""

import logging
import os
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NoReturn, TextIO
from uuid import uuid4

import typer

from clozeline.cluster import store as cluster
from clozeline.params import pretraining, project, reading
from clozeline.registry.start_lock import START_LOCK, StartLock
from clozeline.stages.calling.calls import arguments_for, section_of, stage_named
from clozeline.system import errors, machine
from clozeline.system.workspace import Workspace
from clozeline.tracking.run_logger import require_tensorboard

# Arguments of torchrun, such as `--nproc-per-node 8`. Not a param, because devices do not change the result.
TORCHRUN_VARIABLE = "CLOZELINE_TORCHRUN"
_TRAINING_STAGES = {"pretrain", "evaluate", "finetune"}
_INSIDE = ("TORCHELASTIC_RUN_ID", "RANK")
# Default of --master-addr.
_HERE = "127.0.0.1"
# Restarts after a lost node, where the arguments leave it open.
_RESTARTS = "3"
# Variables that have the same values on each node of a gang.
_OURS = ("CLOZELINE_", "OMP_NUM_THREADS")
# Number that a shell adds to the signal that ended a process.
_SIGNALLED = 128
# Stages that run as a whole; `preprocess` and `tokenize` spread their tasks.
_CLUSTER_STAGES = {"pretrain", "evaluate", "finetune", "export", "import"}
PARAMS = Path("params.yaml")
# Paths that a stage writes, by stage that may begin with a model; for `dvc repro` without the flow.
_OWN_OUTPUTS: Mapping[str, tuple[str, ...]] = {"tokenize": ("tokenizer", "out"), "pretrain": ("out",)}


def is_for_torchrun(stage: str, environment: Mapping[str, str] = os.environ) -> bool:
    """Return whether to start torchrun; False in the processes that it started, which do the training."""
    return (
        stage in _TRAINING_STAGES
        and not is_inside(environment)
        and bool(environment.get(TORCHRUN_VARIABLE, "").strip())
    )


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
    if given := environment.get(TORCHRUN_VARIABLE, "").strip():
        raise errors.ParamsError(
            f'`clozeline {command}` trains in one process: {TORCHRUN_VARIABLE}="{given}" is for other commands',
            do=f"run `env -u {TORCHRUN_VARIABLE} clozeline {command} …`",
        )


def run_under_torchrun(stage: str, arguments: list[str], torchrun_arguments: str) -> None:
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
        raise errors.TransientError(
            f'the machines of {TORCHRUN_VARIABLE}="{torchrun_arguments}" do not find each other: {error}',
            do="start this command on --nnodes machines, that of --rdzv-endpoint first, and open its port",
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
        raise errors.ParamsError(
            f'a gang needs the number of nodes and of processes on each: {TORCHRUN_VARIABLE}="{torchrun_arguments}"',
            do='give numbers, such as "--nnodes 1:2 --nproc-per-node 8": one or two nodes, 8 processes on each',
        ) from error
    if head != cluster.AUTO:
        cluster.check_reachable(head)  # before the import of Ray, which takes seconds
    from clozeline.cluster.ray_jobs import GangSize, placed_gang

    with placed_gang(head, Path.cwd(), GangSize(least, most, processes)) as gang:
        store = TCPStore(gang.host, 0, is_master=True, wait_for_workers=False)
        meeting = ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"{gang.host}:{store.port}", "--rdzv-id", uuid4().hex]
        meeting += ["--rdzv-conf", ",".join(filter(None, ["is_host=false", options.rdzv_conf]))]
        size = ["--nnodes", f"{least}:{gang.num_nodes}"]
        all_of_it = shlex.join(["--max-restarts", _RESTARTS, *given, *size, *meeting])
        own = {name: value for name, value in os.environ.items() if name.startswith(_OURS)}
        command = [sys.executable, "-m", "clozeline", "stage", *stage]
        environment = {**own, TORCHRUN_VARIABLE: all_of_it, cluster.VARIABLE: ""}
        return gang.run(command, environment, _written_to(sys.stderr))


def _written_to(stream: TextIO) -> Callable[[bytes], None]:
    def write(content: bytes) -> None:
        stream.buffer.write(content)
        stream.buffer.flush()

    return write


def is_for_cluster(stage: str, environment: Mapping[str, str] = os.environ) -> bool:
    """Return whether to send the stage to the cluster; False on the node, where the variable is not set."""
    return stage in _CLUSTER_STAGES and not is_inside(environment) and cluster.takes_whole_stages(environment)


def run_on_cluster(stage: str, arguments: list[str], seeds: Sequence[int] = ()) -> None:
    """Run the stage on a node.

    Several seeds of a fine-tuning are trained side by side first; the stage then goes on from their checkpoints.

    Raises:
        ClozelineError: it was killed there; or the cluster cannot be used, as in `ray_jobs.run_jobs`.
        typer.Exit: with the exit code of the stage, or of the signal that stopped us both.
    """
    address = cluster.reachable_cluster()
    assert address is not None
    from clozeline.cluster.ray_jobs import StoppedError, run_jobs
    from clozeline.orchestration.stage_process import failure_of_killed, is_killed

    here = {name: value for name, value in os.environ.items() if name != cluster.VARIABLE} | {"PYTHONUNBUFFERED": "1"}
    command = [sys.executable, "-m", "clozeline", "stage", stage, *arguments]
    of_seeds = [[*command, f"only_seed={seed}"] for seed in seeds] if len(seeds) > 1 else []
    try:
        found = run_jobs(address, Path("work"), of_seeds, here, _written_to(sys.stdout)) if of_seeds else []
        if not any(one.exit_code for one in found):
            found = run_jobs(address, Path("work"), [command], here, _written_to(sys.stdout))
    except StoppedError as stopped:
        raise typer.Exit(_SIGNALLED + stopped.number) from stopped
    ended = next((one for one in found if one.exit_code), found[0])
    if is_killed(ended.exit_code):
        task = next((f"@{value}" for name, _, value in (one.partition("=") for one in arguments) if name == "task"), "")
        where = f"the lines above (node {ended.node})"
        raise failure_of_killed(f"{stage}{task}", where, ended.out_of_memory_kills, ended.available_bytes)
    raise typer.Exit(ended.exit_code)


def start_folder(params: project.Params, *, fetches: bool) -> Path | None:
    """Return the folder of the encoder in start.lock, relative to the current one; None without `start: champion`.

    Every stage checks start.lock, so that `dvc repro` stops at the first one. `fetches`: whether it needs the files.

    Raises:
        ArtifactError: start.lock disagrees with `pretrain.start`; or its version is gone, or has other files.
        ParamsError: the params ask for another model than that version.
        TransientError: the registry does not answer.
    """
    locked = StartLock.of_yaml(Path(START_LOCK))
    if (locked is not None) != (params.pretrain.start == pretraining.FROM_CHAMPION):
        version = f"version {locked.version} of {locked.model}" if locked else "no version"
        raise errors.ArtifactError(
            f"{START_LOCK} and `pretrain.start` disagree: {version}, but `start: {params.pretrain.start or 'null'}`",
            do=f"run `clozeline run --no-release`, which writes {START_LOCK}; from then on `dvc repro` uses it",
        )
    if locked is None:
        return None
    locked.check_architecture(params.pretrain)
    if not fetches:
        return None
    from clozeline.registry.trained import fetch_trained

    return fetch_trained(locked, Workspace(Path()))


def with_start_folder(pretrain: pretraining.PretrainParams, params: project.Params) -> pretraining.PretrainParams:
    """Return `pretrain` with the folder of the champion as its start: the one in start.lock, else the present one.

    Raises:
        ArtifactError: there is no champion, or its files are gone.
        ParamsError: `pretrain` asks for another model than it.
        TransientError: the registry does not answer.
    """
    if pretrain.start != pretraining.FROM_CHAMPION:
        return pretrain
    from clozeline.registry.models import model_name
    from clozeline.registry.trained import fetch_trained, locked_champion

    workspace = Workspace(Path())
    locked = StartLock.of_yaml(Path(START_LOCK)) or locked_champion(
        model_name(params.encoder_package or ""), "", workspace
    )
    locked.check_architecture(pretrain)
    return pretrain.model_copy(update={"start": str(fetch_trained(locked, workspace))})


def stage(name: str, arguments: list[str]) -> None:
    """Run one stage with its section of params.yaml. Called by `dvc repro`, rarely by hand.

    With `CLOZELINE_TORCHRUN="--nproc-per-node 8"` in the environment, `pretrain`, `evaluate` and `finetune` run in 8
    processes, one for each GPU of this machine; with more of torchrun's arguments, on several machines that may fail,
    which Ray finds if `CLOZELINE_CLUSTER` names a cluster (docs/pretraining.md). Without it, a stage runs on a node of
    that cluster, or spreads its tasks (docs/cluster.md).

    Example: `clozeline stage tokenize clean=data/clean out=data/tokens …`

    Args:
        name: A stage: a file of clozeline/stages.
        arguments: Its paths (and task or model), as name=value.
    """
    require_tensorboard()
    params = reading.read_params(PARAMS)
    start = start_folder(params, fetches=any(text.startswith("start=") for text in arguments))
    if is_for_torchrun(name):
        run_under_torchrun(name, arguments, os.environ[TORCHRUN_VARIABLE])
        return
    if is_for_cluster(name):
        run_on_cluster(name, arguments, _seeds(name, params, arguments))
        return
    if machine.are_limited():
        from threadpoolctl import threadpool_limits  # an extra brings it

        # Torch reads the variable when it is loaded; numpy is loaded already.
        threads = os.environ.setdefault("OMP_NUM_THREADS", str(machine.available_cores()))
        threadpool_limits(int(threads), user_api="blas")
    from clozeline.stages.calling.contract import under_contract
    from clozeline.versions.project import refuse_own_outputs

    run = stage_named(name)
    given = arguments_for(run, name, params, arguments, start=start)
    refuse_own_outputs(params.starting_models, [given[out] for out in _OWN_OUTPUTS.get(name, ())], Path.cwd())
    if name == "pretrain":
        from clozeline.planning.costs import warn_of_memory

        given["before_first_step"] = warn_of_memory
    try:
        # Of several processes the first one checks the contract and writes its record.
        is_first = os.environ.get("RANK", "0") == "0"
        with under_contract(name if is_first else "", given.get("task"), given.get("data"), params, Path.cwd()):
            run(**given)
        if is_inside():
            from clozeline.system.group import leave  # brings torch, which not every stage needs

            leave()
    except errors.ClozelineError as error:
        place = ".".join(filter(None, (section_of(name), given.get("task"))))
        raise reading.in_params(error, PARAMS, place, given["params"]) from error


def _seeds(stage: str, params: project.Params, arguments: Sequence[str]) -> range:
    """Return the seeds of a fine-tuning; none of other stages."""
    task = next((text.removeprefix("task=") for text in arguments if text.startswith("task=")), "")
    section = params.finetune.get(task) if stage == "finetune" else None
    return range(0) if section is None else range(params.seed, params.seed + section.num_seeds)
