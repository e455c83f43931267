"""Recipes: named sets of values that are laid over the section `pretrain`."""

from collections.abc import Collection, Iterator, Mapping
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


def faults_of_recipes(recipes: Mapping[str, Any], chosen: Any) -> Iterator[ValueError]:
    """Yield a fault if the chosen recipe is missing, and one for each part of a recipe that `pretrain` cannot take."""
    if chosen not in recipes:
        yield ValueError(f"a key of `recipes`: {', '.join(recipes)}", {"pretrain.recipe": chosen})
    for name, recipe in recipes.items():
        yield from faults_of_keys(f"recipes.{name}", recipe, PretrainParams, without={"recipe"})


def faults_of_keys(
    place: str, values: Any, section: type[BaseModel], without: Collection[str] = ()
) -> Iterator[ValueError]:
    """Yield a fault if `values`, to be laid over or under `section`, is not a section, and one for each unknown key."""
    if not isinstance(values, Mapping):
        yield ValueError("keys of the section, with their values", {place: values})
        return
    known = {key: field.annotation for key, field in section.model_fields.items() if key not in without}
    for key, value in values.items():
        if key not in known:
            yield UnknownKeyError(f"{place}.{key}", str(key), value, sorted(known))
        elif (inner := section_in(known[key])) is not None and value is not None:
            yield from faults_of_keys(f"{place}.{key}", value, inner)


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
