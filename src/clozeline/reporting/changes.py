"""Inputs of the stages that differ between runs."""

from collections.abc import Mapping, Sequence

from clozeline.artifacts.lock import Lock


def differences(locks: Sequence[Lock]) -> Mapping[str, tuple[str, ...]]:
    """Return the value in each lock of each differing knob, and the hashes of data and code that no stage makes."""
    changes = {}
    for read in (_knobs, _sources):
        values = [read(lock) for lock in locks]
        for key in sorted(set().union(*values)):
            row = tuple(each.get(key, "–") for each in values)
            if len(set(row)) > 1:
                changes[key] = row
    return changes


def _knobs(lock: Lock) -> dict[str, str]:
    return {key: value for stage in lock.stages.values() for key, value in stage.flat_params().items()}


def _sources(lock: Lock) -> dict[str, str]:
    deps = [dep for stage in lock.stages.values() for dep in stage.deps]
    return {dep.path: (dep.md5 or "")[:10] for dep in deps if lock.maker_of(dep.path) is None}
