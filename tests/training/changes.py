"""Params of a training with some of them changed."""

from typing import Any

from clozeline.params.pretraining import PretrainParams


def changed(params: PretrainParams, **changes: Any) -> PretrainParams:
    """Return `params` with `changes`; keys of subsections are written `section__key`."""
    tree = params.model_dump()
    for name, value in changes.items():
        section, _, key = name.rpartition("__")
        (tree[section] if section else tree)[key] = value
    return PretrainParams.model_validate(tree)
