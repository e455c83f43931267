"""Layers of params, laid before values are checked: a recipe over `pretrain`; presets and defaults under tasks."""

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from clozeline.params.pretraining import PretrainParams, laid_over
from clozeline.params.schema import IdleKeyError, UnknownKeyError, mapping_at, section_in
from clozeline.params.tasks import DATA, PRESET, SECTIONS, SHARED, FinetuneParams, preset_of, whole_task

_WATCHED = ("corpus.lock", "requirements.lock")
"""Files that DVC may watch for a task with records on the hub, which has no file of its own; the first is proposed."""


def with_layers(tree: Any) -> tuple[list[ValueError], Any]:
    """Return the faults of recipes and defaults, and the tree with as many layers as can be laid."""
    faults: list[ValueError] = []
    match tree:
        case {"recipes": Mapping() as recipes, "pretrain": Mapping() as pretrain}:
            faults.extend(_in_recipes(recipes, chosen := pretrain.get("recipe")))
            if isinstance(recipe := recipes.get(str(chosen)), Mapping):
                tree = {**tree, "pretrain": laid_over(pretrain, recipe)}
    match tree:
        case {"finetune_defaults": Mapping() as defaults, "finetune": Mapping() as tasks}:
            faults.extend(_in_defaults(defaults))
            presets, whole = mapping_at(tree, "presets"), dict(tasks)
            for name, task in tasks.items():
                if isinstance(task, Mapping):
                    whole[name] = whole_task(task, defaults, presets)
                    faults.extend(_in_preset(name, task, presets))
                    faults.extend(_idle(name, task, defaults, str(whole[name].get("kind"))))
                    faults.extend(_in_sources(name, task, whole[name].get("hub")))
            tree = {**tree, "finetune": whole}
    return faults, tree


def _in_recipes(recipes: Mapping[str, Any], chosen: Any) -> Iterator[ValueError]:
    """Yield a fault if the chosen recipe is missing, and one for each part of a recipe that `pretrain` cannot take."""
    if str(chosen) not in recipes:
        yield ValueError(f"a key of `recipes`: {', '.join(recipes)}", {"pretrain.recipe": chosen})
    for name, recipe in recipes.items():
        yield from _in_keys(f"recipes.{name}", recipe, PretrainParams, without={"recipe"})


def _in_defaults(defaults: Mapping[str, Any]) -> Iterator[ValueError]:
    """Yield a fault for each section of `finetune_defaults` that names no kind, and for each key its kind lacks."""
    known: Mapping[str, type[BaseModel]] = {SHARED: FinetuneParams, **SECTIONS}
    for kind, section in defaults.items():
        if kind not in known:
            yield UnknownKeyError(f"finetune_defaults.{kind}", str(kind), section, list(known))
        else:
            yield from _in_keys(f"finetune_defaults.{kind}", section, known[kind], without={"kind", DATA})


def _in_keys(place: str, values: Any, section: type[BaseModel], without: Collection[str] = ()) -> Iterator[ValueError]:
    """Yield a fault if `values`, to be laid over or under `section`, is not a section, and one for each unknown key."""
    if not isinstance(values, Mapping):
        yield ValueError("keys of the section, with their values", {place: values})
        return
    known = {key: field.annotation for key, field in section.model_fields.items() if key not in without}
    for key, value in values.items():
        if key not in known:
            yield UnknownKeyError(f"{place}.{key}", str(key), value, sorted(known))
        elif (inner := section_in(known[key])) is not None and value is not None:
            yield from _in_keys(f"{place}.{key}", value, inner)


def _in_preset(name: str, task: Mapping[str, Any], presets: Mapping[str, Any]) -> Iterator[ValueError]:
    """Yield a fault for a preset that is unknown, or of another kind than the task."""
    if PRESET not in task or preset_of(task, presets):
        return
    kind = task.get("kind")
    known = [one for one, row in presets.items() if isinstance(row, Mapping) and kind in (None, row.get("kind"))]
    expected = f"a preset{f' of kind `{kind}`' if kind else ''}: {', '.join(known) or 'there is none'}"
    yield ValueError(expected, {f"finetune.{name}.{PRESET}": task[PRESET]})


def _idle(name: str, task: Mapping[str, Any], defaults: Mapping[str, Any], kind: str) -> Iterator[IdleKeyError]:
    """Yield keys without effect in the task or in its kind's defaults; shared defaults may set them."""
    expected = f"no such key: it has no effect in a task of kind `{kind}`"
    for place, given in ((f"finetune.{name}", task), (f"finetune_defaults.{kind}", mapping_at(defaults, kind))):
        for key in SECTIONS[kind].idle if kind in SECTIONS else ():
            if key in given:
                yield IdleKeyError(f"{place}.{key}", given[key], expected)


def _in_sources(name: str, task: Mapping[str, Any], hub: Any) -> Iterator[ValueError]:
    """Yield a fault for a file in `data` beside records of the hub, which are read instead of it.

    A dataset may be a local folder that DVC watches, or a part of it.
    """
    match task, hub:
        case {"data": str() as data}, {"dataset": str() as dataset}:
            is_watched = Path(data).is_relative_to(dataset) or Path(dataset).is_relative_to(data)
            if not is_watched and str(Path(data)) not in _WATCHED:
                expected = (
                    f"`data: {_WATCHED[0]}`, because `hub` takes the records from the hub; or `hub: null`, to read"
                )
                yield ValueError(f"{expected} the file", {f"finetune.{name}.data": data, f"finetune.{name}.hub": hub})
