"""Defaults of all knobs: the params.yaml of our own project, which the package carries. Others state their changes."""

from collections.abc import Mapping
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel
from ruamel.yaml import YAML

from clozeline.params.finetuning.layers import PRESET, SAID_BY_THE_TASK
from clozeline.params.pretraining import BUDGETS
from clozeline.params.project import Params
from clozeline.params.recipes import laid_over
from clozeline.params.section import section_in

FILE: Final = Path(__file__).with_name("defaults.yaml")
"""The project's own params.yaml: a link in a checkout, a copy in a wheel."""
_ADDED_BY_NAME: Final = ("recipes", "presets")
_LAID_OVER: Final = ("finetune_defaults",)


def default_tree() -> Any:
    """Return the default params, for the caller to change."""
    return deepcopy(_defaults())


def with_defaults(tree: Any) -> Any:
    """Return `tree` completed with defaults.

    Keys that a section lacks are added. A mapping whose names the user chooses, such as `finetune` or `export.models`,
    is taken as it is, and so is the budget of `pretrain`, in steps, tokens or epochs. Recipes and presets are added to
    those of the defaults, and replace their namesakes. A task that names a preset of the defaults gets its values:
    `<<: *sst2` would need the preset in the file itself.
    """
    if not isinstance(tree, Mapping):
        return tree
    whole = _completed(tree, default_tree(), Params)
    for name, default in _defaults().items():
        if isinstance(own := tree.get(name), Mapping):
            if name in _ADDED_BY_NAME:
                whole[name] = {**default, **own}
            elif name in _LAID_OVER:
                whole[name] = laid_over(default, own)
    if isinstance(own := tree.get("pretrain"), Mapping) and any(name in own for name in BUDGETS):
        whole["pretrain"] |= {name: None for name in BUDGETS if name not in own}
    if isinstance(tasks := tree.get("finetune"), Mapping):
        presets = {name: row for name, row in _defaults()["presets"].items() if name not in tree.get("presets", ())}
        whole["finetune"] = {name: _with_preset(task, presets) for name, task in tasks.items()}
    return whole


def _with_preset(task: Any, presets: Mapping[str, Any]) -> Any:
    named = presets.get(str(task.get(PRESET))) if isinstance(task, Mapping) else None
    if named is None or named["kind"] != task.get("kind"):
        return task  # reading the params reports the fault
    values = {key: value for key, value in deepcopy(named).items() if key not in SAID_BY_THE_TASK}
    return {**values, **{key: value for key, value in task.items() if key != PRESET}}


@cache
def _defaults() -> dict[str, Any]:
    tree: dict[str, Any] = YAML(typ="safe").load(FILE)
    return tree


def _completed(own: Mapping[str, Any], default: dict[str, Any], kind: type[BaseModel]) -> dict[str, Any]:
    result = {**default, **own}
    for name, field in kind.model_fields.items():
        inner, given, usual = section_in(field.annotation), own.get(name), default.get(name)
        if inner and isinstance(given, Mapping) and isinstance(usual, Mapping):
            result[name] = _completed(given, dict(usual), inner)
    return result
