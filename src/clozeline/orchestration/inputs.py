"""What a run needs and no stage makes, looked for before the hours that would be lost for want of it."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from prefect import get_run_logger
from ruamel.yaml import YAML

from clozeline.errors import DataError
from clozeline.params import LabelledParams, Params
from clozeline.versions.graph import StageNode

_CLEAN: Final = "data/clean"
_LABELLED_BY_ITSELF: Final = "python-docs"  # each text knows its library


def require_inputs(root: Path, graph: Sequence[StageNode], done: Collection[str]) -> None:
    """Every input that is not still to be made is there; `done` names the stages that are up to date.

    DVC would say of a source only that there is no such file, and of a task's data only after pre-training.

    Raises:
        DataError: one is missing; names the file, and the key of params.yaml that says where it is.
    """
    to_be_made = [out for node in graph if node.name not in done for out in node.outs]
    for node in graph:
        for path in node.deps:
            if not (root / path).exists() and not any(Path(path).is_relative_to(out) for out in to_be_made):
                raise _missing(root, node, path)


def unlabelled_tasks(params: Params) -> list[str]:
    """Tasks whose labels would be the names of the source's files, as nothing else is said about labels."""
    source = params.preprocess.source
    if source.kind == _LABELLED_BY_ITSELF or source.label_field is not None:
        return []
    return [
        name
        for name, task in params.finetune.items()
        if isinstance(task, LabelledParams) and task.label_field == "source" and Path(task.data).is_relative_to(_CLEAN)
    ]


def warn_of_missing_labels(params: Params) -> None:
    """Tell the run's log of each of them."""
    for name in unlabelled_tasks(params):
        get_run_logger().warning(
            "finetune.%s learns which file a text is from: preprocess.source.label_field is null. If your text has no "
            "labels, write `finetune: {}` and leave only `encoder: encoder` under export.models",
            name,
        )


def _missing(root: Path, node: StageNode, path: str) -> DataError:
    keys = [key for key, value in _leaves(YAML(typ="safe").load(root / "params.yaml")) if value == path]
    return DataError(
        f"{path} does not exist, and stage `{node.name}` reads it",
        given=f"{' and '.join(keys)}: {path} in params.yaml" if keys else f"deps of `{node.name}` in dvc.yaml: {path}",
        expected=f"a file or folder that is there, its path from {root}",
        do=f"correct {keys[0] if keys else 'dvc.yaml'}, or bring the file (`dvc pull`, if DVC keeps it)",
    )


def _leaves(section: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, object]]:
    for name, value in section.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
