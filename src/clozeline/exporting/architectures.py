"""Architectures in config.json: which kind of model a folder holds, and which cannot be exported."""

import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from clozeline.artifacts.export.manifest import Task
from clozeline.errors import ArtifactError
from clozeline.inference.model_kinds import MODEL_KINDS

NOT_EXPORTED: Mapping[str, str] = MappingProxyType(
    {
        "longformer": "torch.export cannot trace its windows, which Python code chooses by the length of the text",
    }
)
"""Families (`model_type` in config.json) that train here but cannot be exported, and why."""


def task_of(folder: Path) -> Task:
    """Return the kind of model in a folder.

    Raises:
        ArtifactError: there is no model in it, or none that can be exported.
    """
    config = folder / "config.json"
    try:
        facts = facts_in(config)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise ArtifactError(
            f"{folder} holds no model: no {config}", do="run `dvc repro`, which trains the models first"
        ) from error
    names, known = architectures_in(config)
    kind = str(facts.get("model_type"))
    if kind in NOT_EXPORTED:
        raise ArtifactError(
            f"{folder}: model_type {kind} cannot be exported to ONNX: {NOT_EXPORTED[kind]}",
            do="train another family, or remove this model from `models`",
        )
    if len(known) != 1:
        raise ArtifactError(
            f"{config}: no export of the architectures: {', '.join(names) or 'none'}, only {', '.join(_endings())}",
            do="save the model with its head (`AutoModelForMaskedLM`, `AutoModelForTokenClassification`, …)",
        )
    return known[0]


def architectures_in(config: Path) -> tuple[list[str], list[Task]]:
    """Return the names in `architectures` of a config.json, and the kinds of model that they stand for."""
    architectures = facts_in(config).get("architectures") or []
    names = [str(name) for name in (architectures if isinstance(architectures, list) else [architectures])]
    endings = _endings()
    longest_first = sorted(endings, key=len, reverse=True)
    found = [next((ending for ending in longest_first if name.endswith(ending)), None) for name in names]
    return names, list(dict.fromkeys(endings[ending] for ending in found if ending is not None))


def _endings() -> dict[str, Task]:
    """Return ending of the name of an architecture → kind of model."""
    return {ending: task for task, kind in MODEL_KINDS.items() for ending in kind.architectures}


def facts_in(file: Path, kind: type = dict) -> Any:
    """Return the JSON object (or list, by `kind`) in a file.

    Raises:
        ArtifactError: the file holds something else.
    """
    try:
        facts = json.loads(file.read_bytes())
        given = f"a {type(facts).__name__}"
    except ValueError as error:  # invalid JSON or UTF-8
        facts, given = None, str(error)
    if not isinstance(facts, kind):
        raise damaged(file, given, "a JSON object" if kind is dict else "a JSON list")
    return facts


def damaged(file: Path, given: str, expected: str) -> ArtifactError:
    return ArtifactError(
        f"{file} is damaged: expected {expected}, got {given}",
        do="if a stage made it, run `dvc repro`, which restores it; otherwise download or save it again",
    )
