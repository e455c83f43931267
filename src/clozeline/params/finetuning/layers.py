"""Layers of a task: shared defaults, overlaid by those of its kind, by its preset, and by its own values."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pydantic import BaseModel

from clozeline.params.finetuning.classification import LabelledParams
from clozeline.params.finetuning.sections import SECTIONS
from clozeline.params.finetuning.shared import FinetuneParams
from clozeline.params.finetuning.zero_shot import ZeroShotParams
from clozeline.params.recipes import faults_of_keys, laid_over
from clozeline.params.section import IdleKeyError, UnknownKeyError

SHARED = "shared"
PRESET = "preset"
"""Key of a task for the name of a row of `presets`."""
_DATA = "data"
"""Key that DVC reads from the task itself, before any layers are merged."""
_INHERITED = {
    "zero_shot": (
        "classification",
        {
            name
            for name in LabelledParams.model_fields.keys() - FinetuneParams.model_fields.keys()
            if ZeroShotParams.model_fields[name].is_required()
        },
    )
}
"""Kind → kind whose defaults lie under its own, and the keys that it takes of them."""
_NONE: Mapping[str, Any] = MappingProxyType({})
_WATCHED = ("corpus.lock", "requirements.lock")
"""Files that DVC may watch for a task with records on the hub, which has no file of its own; the first is proposed."""


def whole_task(
    task: Mapping[str, Any], defaults: Mapping[str, Any], presets: Mapping[str, Any] = _NONE
) -> dict[str, Any]:
    """Return `task` completed by the layers under it. A key of the task replaces that of its preset whole."""
    own = {**_preset_of(task, presets), **task}
    kind = str(own.get("kind"))
    whole: dict[str, Any] = {}
    for layer in (defaults.get(SHARED), _inherited(kind, defaults), defaults.get(kind), own):
        whole = laid_over(whole, layer) if isinstance(layer, Mapping) else whole
    whole.pop(PRESET, None)
    return whole


def _preset_of(task: Mapping[str, Any], presets: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that `task` takes of its preset; none of an unknown one, or of one of another kind."""
    row = presets.get(str(task.get(PRESET)))
    if not isinstance(row, Mapping) or task.get("kind", row.get("kind")) != row.get("kind"):
        return {}
    return {key: value for key, value in row.items() if key != _DATA}


def _inherited(kind: str, defaults: Mapping[str, Any]) -> dict[str, Any]:
    other, keys = _INHERITED.get(kind, ("", ()))
    section = defaults.get(other)
    return {key: section[key] for key in keys if key in section} if isinstance(section, Mapping) else {}


def faults_of_task(
    name: str, task: Mapping[str, Any], defaults: Mapping[str, Any], presets: Mapping[str, Any]
) -> Iterator[ValueError]:
    """Yield a fault for an unknown preset, for each key without effect, and if records come from two places."""
    whole = whole_task(task, defaults, presets)
    if PRESET in task and not _preset_of(task, presets):
        yield ValueError(_known_presets(task.get("kind"), presets), {f"finetune.{name}.{PRESET}": task[PRESET]})
    yield from _idle_keys(name, task, str(whole.get("kind")), defaults)
    yield from _two_sources(name, task, whole)


def _known_presets(kind: object, presets: Mapping[str, Any]) -> str:
    known = [
        name for name, row in presets.items() if isinstance(row, Mapping) and (kind is None or row.get("kind") == kind)
    ]
    return f"a preset{f' of kind `{kind}`' if kind else ''}: {', '.join(known) or 'there is none'}"


def _idle_keys(name: str, task: Mapping[str, Any], kind: str, defaults: Mapping[str, Any]) -> Iterator[IdleKeyError]:
    """Yield keys without effect in the task or in its kind's defaults; shared defaults may set them."""
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
            yield from faults_of_keys(f"finetune_defaults.{kind}", section, known[kind], without={"kind", _DATA})


def where_laid(key: str, tree: Any) -> str:
    """Return `finetune.TASK.a.b`, or `presets.….a.b` or `finetune_defaults.….a.b` if the value is set there."""
    section, _, rest = key.partition(".")
    name, _, inner = rest.partition(".")
    if section != "finetune" or not inner:
        return key
    task, presets = tree["finetune"][name], tree.get("presets")
    preset = _preset_of(task, presets) if isinstance(presets, Mapping) else {}
    kind = task.get("kind", preset.get("kind"))
    below = [kind, *([_INHERITED[kind][0]] if kind in _INHERITED and inner in _INHERITED[kind][1] else []), SHARED]
    of_preset = [f"presets.{task[PRESET]}"] if inner.partition(".")[0] in preset else []
    for place in (f"finetune.{name}", *of_preset, *(f"finetune_defaults.{section}" for section in below)):
        if _is_written(f"{place}.{inner}", tree):
            return f"{place}.{inner}"
    return key


def _is_written(key: str, tree: Any) -> bool:
    for part in key.split("."):
        if not isinstance(tree, Mapping) or part not in tree:
            return False
        tree = tree[part]
    return True
