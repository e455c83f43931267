"""Which tests are slow: those that start a process, a server or a browser, and those that train a model, export it, or
open it in transformers.

A test is known by what its code and that of its fixtures can reach within `tests`, so nobody has to remember a mark.
"""

from collections.abc import Callable, Iterable, Iterator
from functools import cache
from inspect import isclass, isfunction, ismodule, unwrap
from types import CodeType
from typing import Any

import pytest

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
    "clozeline.exporting.to_onnx",
    "clozeline.flows",
    "clozeline.lab.glue",
    "clozeline.orchestration",
    "clozeline.planning.timing",
    "clozeline.planning.serving",
    "clozeline.pretraining.job",
    "clozeline.registry",
    "clozeline.serving.uvicorn_adapter",
    "clozeline.stages",
    "clozeline.tasks.training",
    "clozeline.system.workers",
    "clozeline.tracking",
    "clozeline.training.loop",
    "clozeline.versions.reproduce",
)
"""Modules whose whole content is slow. Functions that only read or count there are marked too: a test wrongly marked
slow does no harm.
"""


def is_slow(item: pytest.Item) -> bool:
    """Return whether `item` or one of its fixtures reaches a module of `SLOW`."""
    fixtures = getattr(item, "_fixtureinfo").name2fixturedefs.values()  # noqa: B009  # pytest has no public name for it
    functions = [getattr(item, "function", None), *(found.func for several in fixtures for found in several)]
    return any(_is_slow(unwrap(function)) for function in functions if isfunction(function))


@cache
def _is_slow(function: Callable[..., Any]) -> bool:
    return any(_is_in_slow(place) for place in _places_of(function))


def _is_in_slow(place: str) -> bool:
    return any(place == module or place.startswith(f"{module}.") for module in SLOW)


def _places_of(function: Callable[..., Any]) -> Iterator[str]:
    """Modules whose objects `function` names, itself or through other functions and classes of `tests`."""
    waiting, seen = [function], set()
    while waiting:
        found = waiting.pop()
        if found in seen:
            continue
        seen.add(found)
        for name in _names_in(found.__code__):
            yield name  # of an import within the function
            named = found.__globals__.get(name)
            yield _home_of(named)
            if _home_of(named).startswith("tests."):
                waiting += _functions_of(named)


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
