"""Which tests are slow: those that start a process, a server or a browser, and those that train a model, export it, or
open it in transformers.

A test is known by what its code and that of its fixtures can reach within `tests`, so nobody has to remember a mark.
A place is the name of a module, or of a class or function in it: `module:name`.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from inspect import isclass, isfunction, ismodule, unwrap
from types import CodeType
from typing import Any

import pytest

# Modules whose whole content is slow, and slow functions and classes of others. What only reads or counts in a listed
# module is marked too: a test wrongly marked slow does no harm, but `make check` does not run it.
SLOW = (
    "multiprocessing",
    "subprocess",
    "torch.multiprocessing",
    "torch.utils.data",
    "transformers.models",
    "mlflow",
    "moto",
    "prefect",
    "selenium",
    "clozeline.exporting.to_onnx:export_onnx",
    "clozeline.flows",
    "clozeline.lab.glue",
    "clozeline.orchestration.deployments",
    "clozeline.orchestration.forgetting",
    "clozeline.orchestration.garbage",
    "clozeline.orchestration.pipeline",
    "clozeline.orchestration.prefect_adapter",
    "clozeline.orchestration.release",
    "clozeline.orchestration.servers:answering_server",
    "clozeline.orchestration.servers:ensure_prefect_server",
    "clozeline.orchestration.servers:running",
    "clozeline.orchestration.servers:serve_until_interrupted",
    "clozeline.orchestration.stage_process:StageProcesses",
    "clozeline.orchestration.stage_process:read_all",
    "clozeline.orchestration.status",
    "clozeline.orchestration.trials",
    "clozeline.planning.timing:footprint",
    "clozeline.planning.timing:measure",
    "clozeline.planning.serving",
    "clozeline.pretraining.job",
    "clozeline.registry.lineage",
    "clozeline.registry.publishing",
    "clozeline.registry.served_model",
    "clozeline.registry.versions",
    "clozeline.registry.publishing",
    "clozeline.stages.evaluate",
    "clozeline.stages.export",
    "clozeline.stages.finetune",
    "clozeline.stages.import",
    "clozeline.stages.preprocess",
    "clozeline.stages.pretrain",
    "clozeline.stages.snapshot",
    "clozeline.stages.tokenize",
    "clozeline.tasks.training",
    "clozeline.system.workers",
    "clozeline.tracking.delivery",
    "clozeline.tracking.mlflow",
    "clozeline.tracking.outbox",
    "clozeline.tracking.past_runs:Nights",
    "clozeline.tracking.past_runs:PastRuns",
    "clozeline.tracking.past_runs:attach",
    "clozeline.tracking.past_runs:compared_runs",
    "clozeline.tracking.past_runs:executed_by_hash",
    "clozeline.tracking.past_runs:files_of",
    "clozeline.tracking.past_runs:lock_of",
    "clozeline.tracking.past_runs:past_runs",
    "clozeline.tracking.past_runs:remove_files_of",
    "clozeline.tracking.past_runs:search_files",
    "clozeline.tracking.run_logger",
    "clozeline.tracking.runs",
    "clozeline.training.loop",
    "clozeline.versions.reproduce",
)
_MODULES = {place.partition(":")[0] for place in SLOW}


def is_slow(item: pytest.Item) -> bool:
    """Return whether `item` or one of its fixtures reaches a module of `SLOW`."""
    fixtures = getattr(item, "_fixtureinfo").name2fixturedefs.values()  # noqa: B009  # pytest has no public name for it
    functions = [getattr(item, "function", None), *(found.func for several in fixtures for found in several)]
    return any(_is_slow(unwrap(function)) for function in functions if isfunction(function))


@cache
def _is_slow(function: Callable[..., Any]) -> bool:
    return any(_is_in_slow(place) for place in _places_of(function))


def _is_in_slow(place: str) -> bool:
    module, _, name = place.partition(":")
    if f"{module}:{name.partition('.')[0]}" in SLOW:
        return True
    return any(module == slow or module.startswith(f"{slow}.") for slow in SLOW)


def _places_of(function: Callable[..., Any]) -> Iterator[str]:
    """Places of what `function` names, itself or through other functions and classes of `tests`."""
    waiting, seen = [function], set()
    while waiting:
        found = waiting.pop()
        if found in seen:
            continue
        seen.add(found)
        names = list(_names_in(found.__code__))
        for name in names:
            named = found.__globals__.get(name)
            if ismodule(named):
                yield from (f"{named.__name__}:{attribute}" for attribute in names)
            elif named is None:
                yield from _places_imported(name, names)
            else:
                yield f"{_home_of(named)}:{getattr(named, '__qualname__', name)}"
            if _home_of(named).startswith("tests."):
                waiting += _functions_of(named)


def _places_imported(module: str, names: Sequence[str]) -> Iterator[str]:
    """Places that an import of `module` within a function gives to a function with these names."""
    yield module
    for name in names:
        yield f"{module}:{name}"
        if f"{module}.{name}" in _MODULES:
            yield from (f"{module}.{name}:{attribute}" for attribute in names)


def _names_in(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names_in(constant)


def _home_of(named: object) -> str:
    return str(named.__name__ if ismodule(named) else getattr(named, "__module__", None))


def _functions_of(named: object) -> Iterable[Any]:
    inner = vars(named).values() if isclass(named) else [named]
    return [unwrap(function) for function in inner if isfunction(function)]
