"""Layers of a task: shared defaults, overlaid by those of its kind, by its preset, and by its own values."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from clozeline.params.finetuning.presets import PRESETS
from clozeline.params.finetuning.sections import SECTIONS
from clozeline.params.finetuning.shared import FinetuneParams
from clozeline.params.recipes import check_keys, laid_over
from clozeline.params.section import IdleKeyError, UnknownKeyError

SHARED = "shared"
_SAID_BY_THE_TASK = frozenset({"kind", "data"})
"""Keys that DVC reads from the task itself, before any layers are merged."""
_LOCK = "requirements.lock"
"""What DVC watches for a task with records on the hub: it fixes the version of their reader."""


def whole_task(name: str, task: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Return `task` completed by the layers under it.

    Raises:
        ValueError: the preset is unknown or of another kind, or the task names two places for its records.
        IdleKeyError: the task, or the defaults of its kind, set a key without effect in its kind.
    """
    _check_idle(name, task, defaults)
    whole: dict[str, Any] = {}
    for layer in (*_layers_under(name, task, defaults), task):
        whole = laid_over(whole, layer)
    _check_one_source(name, task, whole)
    return whole


def _check_idle(name: str, task: Mapping[str, Any], defaults: Mapping[str, Any]) -> None:
    """Refuse keys without effect in the task or in its kind's defaults; shared defaults may set them."""
    kind = str(task.get("kind"))
    if kind not in SECTIONS:
        return
    for place, said in ((f"finetune.{name}", task), (f"finetune_defaults.{kind}", defaults.get(kind))):
        for key in SECTIONS[kind].idle:
            if isinstance(said, Mapping) and key in said:
                expected = f"no such key: it has no effect in a task of kind `{kind}`"
                raise IdleKeyError(f"{place}.{key}", said[key], expected)


def _check_one_source(name: str, task: Mapping[str, Any], whole: Mapping[str, Any]) -> None:
    """Refuse a file in `data` beside records of the hub, which are read instead of it."""
    hub, data = whole.get("hub"), task.get("data")
    dataset = hub.get("dataset") if isinstance(hub, Mapping) else None
    if not isinstance(dataset, str) or not isinstance(data, str):
        return
    if Path(data) == Path(_LOCK) or _overlap(data, dataset):
        return
    knob = "preset" if task.get("preset") is not None and "hub" not in task else "hub"
    expected = f"`data: {_LOCK}`, because `{knob}` takes the records from the hub; or `hub: null`, to read the file"
    raise ValueError(expected, {f"finetune.{name}.data": data, f"finetune.{name}.{knob}": whole[knob]})


def _overlap(data: str, dataset: str) -> bool:
    """Return whether the dataset is a local folder that DVC watches, or a part of it."""
    return Path(data).is_relative_to(dataset) or Path(dataset).is_relative_to(data)


def _layers_under(name: str, task: Mapping[str, Any], defaults: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    keys = (SHARED, str(task.get("kind")))
    layers = [section for key in keys if isinstance(section := defaults.get(key), Mapping)]
    preset = task.get("preset")
    if preset is None:
        return layers
    of_kind = [known for known, row in PRESETS.items() if row.kind == task.get("kind")]
    if preset not in of_kind:
        expected = f"a preset of kind `{task.get('kind')}`: {', '.join(of_kind) or 'none'}"
        raise ValueError(expected, {f"finetune.{name}.preset": preset})
    return [*layers, PRESETS[preset].values_under(task)]


def check_defaults(defaults: Any) -> None:
    """Check the section `finetune_defaults`.

    Raises:
        ValueError: it does not consist of sections.
        UnknownKeyError: a section names no kind, or sets a key that tasks of its kind do not have.
    """
    if not isinstance(defaults, Mapping):
        raise ValueError("sections: `shared`, and one for each kind", {"finetune_defaults": defaults})
    known: Mapping[str, type[BaseModel]] = {SHARED: FinetuneParams, **SECTIONS}
    for kind, section in defaults.items():
        if kind not in known:
            raise UnknownKeyError(f"finetune_defaults.{kind}", str(kind), section, list(known))
        check_keys(f"finetune_defaults.{kind}", section, known[kind], without=_SAID_BY_THE_TASK)


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
