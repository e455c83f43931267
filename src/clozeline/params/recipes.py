"""Recipes: named sets of values that are laid over the section `pretrain`."""

from collections.abc import Collection, Mapping
from typing import Any

from pydantic import BaseModel

from clozeline.params.pretraining import PretrainParams
from clozeline.params.section import UnknownKeyError, section_in


def laid_over(base: Mapping[str, Any], recipe: Mapping[str, Any]) -> dict[str, Any]:
    """Return `base` overlaid with `recipe`: sections are merged, other values are replaced."""
    result = dict(base)
    for key, value in recipe.items():
        inner = result.get(key)
        result[key] = laid_over(inner, value) if isinstance(inner, Mapping) and isinstance(value, Mapping) else value
    return result


def check_recipes(recipes: Mapping[str, Any], chosen: Any) -> None:
    """Check that the chosen recipe exists and that all recipes set known keys.

    Raises:
        ValueError: the chosen recipe is missing, or a recipe is not a section.
        UnknownKeyError: a recipe sets a key that `pretrain` does not have.
    """
    if chosen not in recipes:
        raise ValueError(f"a key of `recipes`: {', '.join(recipes)}", {"pretrain.recipe": chosen})
    for name, recipe in recipes.items():
        check_keys(f"recipes.{name}", recipe, PretrainParams, without={"recipe"})


def check_keys(place: str, values: Any, section: type[BaseModel], without: Collection[str] = ()) -> None:
    """Check that `values`, to be laid over or under `section`, have only its keys.

    Raises:
        ValueError: `values` is not a section.
        UnknownKeyError: a key is unknown to `section`.
    """
    if not isinstance(values, Mapping):
        raise ValueError("keys of the section, with their values", {place: values})
    known = {key: field.annotation for key, field in section.model_fields.items() if key not in without}
    for key, value in values.items():
        if key not in known:
            raise UnknownKeyError(f"{place}.{key}", str(key), value, sorted(known))
        inner = section_in(known[key])
        if inner is not None and value is not None:
            check_keys(f"{place}.{key}", value, inner)


def where_written(key: str, tree: Any) -> str:
    """Return `pretrain.a.b`, or `recipes.NAME.a.b` if the chosen recipe sets it."""
    section, _, rest = key.partition(".")
    try:
        name = tree["pretrain"]["recipe"]
        inner = tree["recipes"][name]
        for part in rest.split("."):
            inner = inner[part]
    except (KeyError, TypeError):
        return key
    return f"recipes.{name}.{rest}" if section == "pretrain" else key
