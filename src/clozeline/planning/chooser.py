"""Recommended encoder for each need, with the lines of params.yaml that configure it: the rows of choices.yaml."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from ruamel.yaml import YAML

_OF_START: Final = "that of the start"
_RECIPE_OF_START: Final = "domain-adaptation"
_TOKENIZER = {f"tokenize.{key}" for key in ("algorithm", "existing", "vocab_size", "lowercase")} | {
    "pretrain.start",
    "pretrain.recipe",
    "pretrain.objective",
}
"""Keys of the tokenizer, of the starting model that it belongs to, and its objective; all come from the same need."""
_OF_FRESH_MODEL = tuple(
    f"pretrain.{name}" for name in ("model.family", "model.size", "optimizer.", "masking.", "schedule.", "steps")
)
"""Keys that suit a model trained from scratch; a starting model has its own shape, and the rates of its recipe."""


@dataclass(frozen=True)
class Recommendation:
    """Recommendation for one need, with its reason."""

    tokenizer: str
    why: str
    params: Mapping[str, Any]
    """Dotted key of params.yaml → value."""
    family: str = _OF_START
    size: str = _OF_START
    recipe: str = _RECIPE_OF_START


@cache
def choices() -> Mapping[str, Recommendation]:
    """Return the recommendations by need, the values of `clozeline plan --for`."""
    rows = YAML(typ="safe").load(Path(__file__).with_name("choices.yaml"))
    return MappingProxyType({need: _recommendation(**row) for need, row in rows.items()})


def _recommendation(*, start: str | None = None, **row: Any) -> Recommendation:
    """Return a row; `start` is an encoder that others pre-trained on text of a domain, to be trained further."""
    if start is None:
        return Recommendation(**row)
    tokenizer = {"tokenize.algorithm": "existing", "tokenize.existing": start}
    training = {"pretrain.start": start, "pretrain.recipe": _RECIPE_OF_START, "pretrain.objective": "mlm"}
    return Recommendation(params=tokenizer | training, **row)


@dataclass(frozen=True)
class Combined:
    """Merged choices for several needs; the need that is named first wins."""

    params: Mapping[str, Any]
    conflicts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Need → keys that it would have set differently."""


def combine(needs: Sequence[str]) -> Combined:
    """Merge the choices for `needs`, keys of `choices`."""
    params: dict[str, Any] = {}
    conflicts = {}
    for need in dict.fromkeys(needs):
        wanted = choices()[need].params
        lost = {key for key, value in wanted.items() if params.get(key, value) != value}
        if lost & _TOKENIZER:
            lost |= wanted.keys() & _TOKENIZER
        if "pretrain.start" in params:
            lost |= {key for key in wanted if key.startswith(_OF_FRESH_MODEL)}
        if lost:
            conflicts[need] = tuple(key for key in wanted if key in lost)
        params |= {key: value for key, value in wanted.items() if key not in lost}
    return Combined(dict(sorted(params.items())), conflicts)


def as_tree(params: Mapping[str, Any]) -> dict[str, Any]:
    """Return a nested mapping from dotted keys."""
    tree: dict[str, Any] = {}
    for key, value in params.items():
        *sections, name = key.split(".")
        inner = tree
        for section in sections:
            inner = inner.setdefault(section, {})
        inner[name] = value
    return tree
