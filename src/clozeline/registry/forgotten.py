"""Marks of the versions that come from a text that was forgotten."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from clozeline.registry import MODEL_PREFIX, Registered
from clozeline.registry.changes import SUFFIX
from clozeline.registry.client import registry_errors
from clozeline.registry.versions import Registry
from clozeline.tracking.database import prepare
from clozeline.tracking.mlflow_adapter import every

_PATHS: Final = "clozeline.forgotten"
"""Tag of a version: paths of its lineage that were removed, because a forgotten text was in them."""
_TRAINED: Final = "clozeline.trained_on_forgotten"
"""Tag of a version: `true` if a forgotten text was in its clean text."""


@dataclass(frozen=True)
class Mark:
    """What a version has to do with forgotten texts."""

    paths: frozenset[str] = frozenset()
    """Paths of its lineage that were removed."""
    was_trained_on: bool = False
    """Whether a forgotten text was in one of the splits."""


def mark_of(version: Registered, tracking_uri: str) -> Mark:
    """Return the mark of `version`. Raises the errors of `registry_errors`."""
    with registry_errors(str(version), tracking_uri):
        tags = prepare(tracking_uri).get_model_version(version.name, version.version).tags
    return Mark(frozenset(tags.get(_PATHS, "").split()), tags.get(_TRAINED) == "true")


def mark(version: Registered, paths: Collection[str], tracking_uri: str, *, was_trained_on: bool) -> None:
    """Add `paths` to the mark of `version`. Raises the errors of `registry_errors`."""
    known = mark_of(version, tracking_uri)
    registry = Registry.open(tracking_uri)
    registry.tag(version, _PATHS, " ".join(sorted(known.paths.union(paths))))
    if was_trained_on:
        registry.tag(version, _TRAINED, "true")


def every_version(tracking_uri: str) -> list[tuple[Registered, tuple[str, ...]]]:
    """Return every version of our models, with its aliases. Raises the errors of `registry_errors`."""
    found = []
    with registry_errors("models", tracking_uri):
        client = prepare(tracking_uri)
        registry = Registry(client, tracking_uri)
        for model in every(client.search_registered_models, f"name LIKE '{MODEL_PREFIX}%'"):
            if model.name.endswith(SUFFIX):
                continue
            for version in every(client.search_model_versions, f"name = '{model.name}'"):
                number = str(version.version)
                aliases = tuple(sorted(alias for alias, other in model.aliases.items() if str(other) == number))
                found.append((registry.version(model.name, number), aliases))
    return found
