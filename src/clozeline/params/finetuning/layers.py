"""Layers of a task: shared defaults, overlaid by those of its kind, and by its own values."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from clozeline.params.finetuning.sections import SECTIONS
from clozeline.params.finetuning.shared import FinetuneParams
from clozeline.params.recipes import faults_of_keys, laid_over
from clozeline.params.section import IdleKeyError, UnknownKeyError

SHARED = "shared"
PRESET = "preset"
"""Key of a task that `with_defaults` replaces by the values of one of our presets."""
SAID_BY_THE_TASK = frozenset({"kind", "data"})
"""Keys that DVC reads from the task itself, before any layers are merged."""
_WATCHED = ("corpus.lock", "requirements.lock")
"""Files that DVC may watch for a task with records on the hub, which has no file of its own; the first is proposed."""


def whole_task(task: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Return `task` completed by the layers under it."""
    whole: dict[str, Any] = {}
    for layer in (defaults.get(SHARED), defaults.get(str(task.get("kind"))), task):
        whole = laid_over(whole, layer) if isinstance(layer, Mapping) else whole
    whole.pop(PRESET, None)
    return whole


def faults_of_task(name: str, task: Mapping[str, Any], defaults: Mapping[str, Any]) -> Iterator[ValueError]:
    """Yield a fault for an unknown preset, for each key without effect, and if records come from two places."""
    if PRESET in task:
        expected = (
            "a preset of this `kind` that this file does not have itself; a row of its own section `presets` is taken "
            "by `<<: *NAME`"
        )
        yield ValueError(expected, {f"finetune.{name}.{PRESET}": task[PRESET]})
    yield from _idle_keys(name, task, defaults)
    yield from _two_sources(name, task, whole_task(task, defaults))


def _idle_keys(name: str, task: Mapping[str, Any], defaults: Mapping[str, Any]) -> Iterator[IdleKeyError]:
    """Yield keys without effect in the task or in its kind's defaults; shared defaults may set them."""
    kind = str(task.get("kind"))
    if kind not in SECTIONS:
        return
    for place, given in ((f"finetune.{name}", task), (f"finetune_defaults.{kind}", defaults.get(kind))):
        for key in SECTIONS[kind].idle:
            if isinstance(given, Mapping) and key in given:
                expected = f"no such key: it has no effect in a task of kind `{kind}`"
                yield IdleKeyError(f"{place}.{key}", given[key], expected)


def _two_sources(name: str, task: Mapping[str, Any], whole: Mapping[str, Any]) -> Iterator[ValueError]:
    """Yield a fault for a file in `data` beside records of the hub, which are read instead of it."""
    hub, data = whole.get("hub"), task.get("data")
    dataset = hub.get("dataset") if isinstance(hub, Mapping) else None
    if not isinstance(dataset, str) or not isinstance(data, str):
        return
    if str(Path(data)) in _WATCHED or _overlap(data, dataset):
        return
    expected = f"`data: {_WATCHED[0]}`, because `hub` takes the records from the hub; or `hub: null`, to read the file"
    yield ValueError(expected, {f"finetune.{name}.data": data, f"finetune.{name}.hub": hub})


def _overlap(data: str, dataset: str) -> bool:
    """Return whether the dataset is a local folder that DVC watches, or a part of it."""
    return Path(data).is_relative_to(dataset) or Path(dataset).is_relative_to(data)


def faults_of_defaults(defaults: Mapping[str, Any]) -> Iterator[ValueError]:
    """Yield a fault for each section of `finetune_defaults` that names no kind, and for each key its kind lacks."""
    known: Mapping[str, type[BaseModel]] = {SHARED: FinetuneParams, **SECTIONS}
    for kind, section in defaults.items():
        if kind not in known:
            yield UnknownKeyError(f"finetune_defaults.{kind}", str(kind), section, list(known))
        else:
            yield from faults_of_keys(f"finetune_defaults.{kind}", section, known[kind], without=SAID_BY_THE_TASK)


def where_laid(key: str, tree: Any) -> str:
    """Return `finetune.TASK.a.b`, or `finetune_defaults.….a.b` if the value is set there."""
    section, _, rest = key.partition(".")
    name, _, inner = rest.partition(".")
    if section != "finetune" or not inner:
        return key
    task = tree["finetune"][name]
    for place in (f"finetune.{name}", f"finetune_defaults.{task.get('kind')}", f"finetune_defaults.{SHARED}"):
        if _is_written(f"{place}.{inner}", tree):
            return f"{place}.{inner}"
    return key


def _is_written(key: str, tree: Any) -> bool:
    for part in key.split("."):
        if not isinstance(tree, Mapping) or part not in tree:
            return False
        tree = tree[part]
    return True
