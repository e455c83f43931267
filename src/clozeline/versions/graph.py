"""DVC's stage graph, read when a run starts."""

import hashlib
import json
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from graphlib import TopologicalSorter
from pathlib import Path

from dvc.exceptions import DvcException
from dvc.repo import Repo, lock_repo
from dvc.stage import PipelineStage, Stage

from clozeline.params.reading import read_params, write_complete
from clozeline.system.errors import ParamsError
from clozeline.versions.project import open_project

# Stage that writes the params as the stages take them, with defaults, recipe and presets.
_PARAMS = "params"


@dataclass(frozen=True)
class StageNode:
    """One stage of dvc.yaml, with `foreach` and templates expanded."""

    name: str
    parents: tuple[str, ...]  # names of the stages whose outputs it reads
    description: str
    deps: tuple[str, ...]  # local files and folders that it reads; relative to the project's root if they are below it
    outs: tuple[str, ...]  # paths that it writes, including metrics and plots, relative to the project's root
    metrics: tuple[str, ...]  # paths of its metric files, relative to the project's root
    shown: tuple[str, ...]  # paths of its plots and reports
    is_changed: bool  # whether DVC finds it or any of its ancestors out of date, or it runs `again`
    # Whether it runs even if DVC finds it up to date, because its source changes where DVC does not look.
    runs_again: bool = False


def read_stage_graph(root: Path, again: Collection[str] = (), only: str | None = None) -> tuple[StageNode, ...]:
    """Return every stage of the project in `root` in topological order; those named in `again` run in any case.

    The output of stage `params` is written first, because DVC compares its values with those of the last run. So that
    stage makes no other stage out of date by itself.

    `only`: name of a stage; others are left out unless it depends on them.

    Raises:
        ParamsError: dvc.yaml cannot be read, or params.yaml has faults.
    """
    with _open_repo(root) as repo:
        # A `.dvc` file tracks data that was added by hand; there is nothing to run.
        stages = {_name(stage): stage for stage in repo.index.stages if isinstance(stage, PipelineStage)}
        if _PARAMS in stages:
            write_complete(read_params(root / "params.yaml"), Path(stages[_PARAMS].outs[0].fs_path))
        graph, status = repo.index.graph, repo.status()
        parents = {name: sorted(stages.keys() & map(_name, graph.successors(stages[name]))) for name in stages}
        ordered = list(TopologicalSorter(parents).static_order())
        if only is not None:
            needed = {only}
            for name in reversed(ordered):
                needed.update(parents[name] if name in needed else ())
            ordered = [name for name in ordered if name in needed]
        changed = {name for name in ordered if stages[name].addressing in status or name in again}
        for name in ordered:
            if not changed.isdisjoint({*parents[name]} - {_PARAMS}):
                changed.add(name)
        return tuple(
            _node(stages[name], tuple(parents[name]), is_changed=name in changed, runs_again=name in again)
            for name in ordered
        )


def fingerprint(root: Path, name: str) -> str:
    """Return a sha256 of everything that the result of stage `name` depends on now: command, params and inputs."""
    with _open_repo(root) as repo:
        (stage,) = (stage for stage in repo.index.stages if _name(stage) == name)
        with lock_repo(repo):
            stage.save_deps(allow_missing=True)
        inputs = {str(dependency): dependency.hash_info.value for dependency in stage.deps}
    return hashlib.sha256(json.dumps([stage.cmd, inputs], sort_keys=True).encode()).hexdigest()


@contextmanager
def _open_repo(root: Path) -> Iterator[Repo]:
    try:
        with open_project(root, waits_for_lock=True) as repo:
            yield repo
    except DvcException as error:
        raise ParamsError(
            f"DVC cannot read the stages of {root / 'dvc.yaml'}: {error}",
            do="correct the fault that DVC names, until `dvc stage list` works",
        ) from error


def _node(stage: PipelineStage, parents: tuple[str, ...], *, is_changed: bool, runs_again: bool) -> StageNode:
    outs = [(out, _from_root(out.fs_path, stage)) for out in stage.outs]
    return StageNode(
        name=_name(stage),
        parents=parents,
        description=stage.desc or "",
        deps=tuple(_from_root(dep.fs_path, stage) for dep in stage.deps if dep.protocol == "local"),
        outs=tuple(path for out, path in outs if out.protocol == "local"),
        metrics=tuple(path for out, path in outs if out.metric),
        shown=tuple(path for out, path in outs if out.plot or path.startswith("reports/")),
        is_changed=is_changed,
        runs_again=runs_again,
    )


def _name(stage: Stage) -> str:
    """Return the stage name that `dvc repro` expects in the project's root; DVC's `addressing` depends on the current
    folder."""
    file = _from_root(stage.path, stage)
    return stage.name if file == "dvc.yaml" else f"{file}:{stage.name}"


def _from_root(path: str, stage: Stage) -> str:
    root = stage.repo.root_dir
    return (Path(path).relative_to(root) if Path(path).is_relative_to(root) else Path(path)).as_posix()
