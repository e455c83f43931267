"""Checks before a run for the inputs that no stage makes: a missing one would otherwise be noticed after hours."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from prefect import get_run_logger

from clozeline.artifacts.preprocess.clean_text import SOURCE
from clozeline.errors import DataError
from clozeline.params import LabelledParams, Params
from clozeline.params.reading import read_tree
from clozeline.tasks.reading import require_readable
from clozeline.versions.graph import StageNode

_CLEAN: Final = "data/clean"
_FINETUNE: Final = "finetune@"
_LABELLED_BY_ITSELF: Final = "python-docs"  # the library of each text is its label


def require_inputs(root: Path, graph: Sequence[StageNode], done: Collection[str]) -> None:
    """Check that every input exists, except outputs of stages that are not in `done`, the stages that are up to date.

    DVC would report a missing source without the key that names it, and missing task data only after pre-training.

    Raises:
        DataError: an input is missing; names the file and the key of params.yaml that sets its path.
    """
    to_be_made = [out for node in graph if node.name not in done for out in node.outs]
    for node in graph:
        for path in node.deps:
            if not (root / path).exists() and not any(Path(path).is_relative_to(out) for out in to_be_made):
                raise _missing(root, node, path)


def require_readable_labels(root: Path, graph: Sequence[StageNode], params: Params) -> None:
    """Check the files of every task that will be trained; `finetune` itself would fail only after pre-training.

    Files that a stage has yet to make and hub datasets are not checked.

    Raises:
        DataError: a file is missing or of another format, or its first record has other fields.
    """
    changed = [node for node in graph if node.is_changed]
    to_be_made = [out for node in changed for out in node.outs]
    for name in (node.name.removeprefix(_FINETUNE) for node in changed if node.name.startswith(_FINETUNE)):
        task = params.finetune[name]
        if any(Path(task.data).is_relative_to(out) for out in to_be_made):
            continue
        try:
            require_readable(task, root / task.data)
        except DataError as error:
            raise DataError(
                f"finetune.{name}: {error.problem}", given=error.given, expected=error.expected, do=error.do
            ) from error


def unlabelled_tasks(params: Params) -> list[str]:
    """Return the tasks whose labels would be the names of the source's files, for lack of a label field."""
    source = params.preprocess.source
    if source.kind == _LABELLED_BY_ITSELF or source.label_field is not None:
        return []
    return [
        name
        for name, task in params.finetune.items()
        if isinstance(task, LabelledParams) and task.label_field == SOURCE and Path(task.data).is_relative_to(_CLEAN)
    ]


def warn_of_missing_labels(params: Params) -> None:
    """Log a warning for each of `unlabelled_tasks`."""
    for name in unlabelled_tasks(params):
        get_run_logger().warning(
            "finetune.%s learns which file a text is from: preprocess.source.label_field is null. If your text has no "
            "labels, write `finetune: {}` and leave only `encoder: encoder` under export.models",
            name,
        )


def _missing(root: Path, node: StageNode, path: str) -> DataError:
    keys = [key for key, value in _leaves(read_tree(root / "params.yaml")) if value == path]
    return DataError(
        f"{path} does not exist, and stage `{node.name}` reads it",
        given=f"{' and '.join(keys)}: {path} in params.yaml" if keys else f"deps of `{node.name}` in dvc.yaml: {path}",
        expected=f"an existing file or folder, with a path relative to {root}",
        do=f"correct {keys[0] if keys else 'dvc.yaml'}, or restore the file (`dvc pull`, if DVC tracks it)",
    )


def _leaves(section: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, object]]:
    for name, value in section.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
