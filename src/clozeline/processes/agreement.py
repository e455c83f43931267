"""Checks, before the first step, that machines which work together have the same programs, inputs and folder.

Machines are named as `NAME (process RANK)`.
"""

import platform
from collections import defaultdict
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from uuid import uuid4

from clozeline.errors import ArtifactError
from clozeline.processes.group import Group

_PACKAGES = ("clozeline", "torch", "transformers")


def check_versions(group: Group) -> None:
    """Check that all processes run the same Python and packages. Every process must call it.

    Raises:
        ArtifactError: they do not; the message names the machines.
    """
    own = ", ".join([f"Python {platform.python_version()}", *(f"{name} {version(name)}" for name in _PACKAGES)])
    _check_alike(
        group.of_each((group.name, own)),
        "machines that work together have different programs",
        expected="the same versions on each",
        do="install the same requirements.lock on every machine (`make run`, or the same image)",
    )


def agreed(group: Group, work: Path, fingerprint: str) -> str:
    """Return the fingerprint of a training that keeps its checkpoints in `work`. Every process must call it.

    Raises:
        ArtifactError: the processes found different ones, or do not share `work`; the message names the machines.
    """
    check_inputs(group, fingerprint)
    check_shared(group, work)
    return fingerprint


def check_inputs(group: Group, fingerprint: str) -> None:
    """Check that all processes found the same `fingerprint` of a training. Every process must call it.

    Raises:
        ArtifactError: they did not; the message names the machines.
    """
    _check_alike(
        group.of_each((group.name, f"fingerprint {fingerprint}")),
        "machines would train different things together",
        expected="the same params.yaml, inputs, code, kind of device and, on CPUs, number of threads",
        do="share the project's folder among them; set `num_threads` if their CPUs have different numbers of cores",
    )


def check_shared(group: Group, folder: Path) -> None:
    """Check that all processes see one `folder`, which is made if it is missing. Every process must call it.

    Raises:
        ArtifactError: a machine does not see what the first process wrote there.
    """
    if group.world_size == 1:
        return
    mark = folder / f".seen-{group.of_the_first(uuid4().hex)}"
    if group.is_first:
        folder.mkdir(parents=True, exist_ok=True)
        mark.touch()
    group.wait()
    seen = group.of_each((group.name, mark.exists()))
    if group.is_first:
        mark.unlink()
    if blind := [name for name, sees in seen if not sees]:
        raise ArtifactError(
            f"{folder} is not shared by the machines: {', '.join(blind)} cannot see a file of {seen[0][0]}",
            do=f"put the project on a file system that all of them mount (NFS, or a volume), and run in {Path.cwd()}",
        )


def _check_alike(found: Sequence[tuple[str, str]], problem: str, *, expected: str, do: str) -> None:
    """Raise if the second values of `found`, a pair for each process, differ."""
    names_of: dict[str, list[str]] = defaultdict(list)
    for name, value in found:
        names_of[value].append(name)
    if len(names_of) > 1:
        given = "; ".join(f"{value}: {', '.join(names)}" for value, names in names_of.items())
        raise ArtifactError(f"{problem}; all need {expected}", given=given, do=do)
