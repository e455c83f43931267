"""What an encoder can be fine-tuned for: a row for each kind. A new kind is a new row and a file beside this one."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from clozeline.tasks.classification import Classification
from clozeline.tasks.task import Task, TaskInputs


@dataclass(frozen=True)
class TaskKind:
    """How a kind of task is set up, and what people are told of it."""

    prepare: Callable[[TaskInputs], Task]
    answers: str
    metric: str
    baseline: str


KINDS: Mapping[str, TaskKind] = MappingProxyType(
    {
        "classification": TaskKind(
            prepare=Classification,
            answers="one label for each text",
            metric="accuracy, macro-F1",
            baseline="TF-IDF + logistic regression, largest class",
        ),
    }
)
"""Keyed by `kind` in params.yaml."""
