"""Defaults of all knobs: the params.yaml of our own project, which the package carries. Others state their changes."""

from collections.abc import Mapping
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel
from ruamel.yaml import YAML

from clozeline.params.pretraining import BUDGETS
from clozeline.params.project import Params
from clozeline.params.recipes import laid_over
from clozeline.params.section import section_in

_HERE: Final = Path(__file__).parent
FILE: Final = _HERE / "defaults.yaml"
"""The project's own params.yaml: a link in a checkout, a copy in a wheel."""
_FILES_BESIDE: Final = ("recipes", "presets")
"""Sections that the package has in a file of their own."""
_LAID_OVER: Final = ("recipes", "finetune_defaults")


def default_tree() -> Any:
    """Return the default params, for the caller to change."""
    return deepcopy(_defaults())


def with_defaults(tree: Any) -> Any:
    """Return `tree` completed with defaults.

    Keys that a section lacks are added. A mapping whose names the user chooses, such as `finetune` or `export.models`,
    is taken as it is, and so is the budget of `pretrain`, in steps, tokens or epochs. Recipes and presets are added to
    those of the package by name, and values under one of its names are laid over it: section by section in a recipe,
    key by key in a preset, as a task's own values are.
    """
    if not isinstance(tree, Mapping):
        return tree
    whole = _completed(tree, default_tree(), Params)
    for name in _LAID_OVER:
        if isinstance(own := tree.get(name), Mapping):
            whole[name] = laid_over(_defaults()[name], own)
    if isinstance(own := tree.get("presets"), Mapping):
        whole["presets"] = _with_presets(_defaults()["presets"], own)
    if isinstance(own := tree.get("pretrain"), Mapping) and any(name in own for name in BUDGETS):
        whole["pretrain"] |= {name: None for name in BUDGETS if name not in own}
    return whole


def _with_presets(known: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    laid = {name: {**known[name], **row} for name, row in own.items() if name in known and isinstance(row, Mapping)}
    return {**known, **own, **laid}


@cache
def _defaults() -> dict[str, Any]:
    yaml = YAML(typ="safe")
    tree: dict[str, Any] = yaml.load(FILE)
    return tree | {name: yaml.load(_HERE / f"{name}.yaml") for name in _FILES_BESIDE}


def _completed(own: Mapping[str, Any], default: dict[str, Any], kind: type[BaseModel]) -> dict[str, Any]:
    result = {**default, **own}
    for name, field in kind.model_fields.items():
        inner, given, usual = section_in(field.annotation), own.get(name), default.get(name)
        if inner and isinstance(given, Mapping) and isinstance(usual, Mapping):
            result[name] = _completed(given, dict(usual), inner)
    return result
