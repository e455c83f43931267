"""What every kind of task is to the training and to the stage: the table of kinds is in kinds.py."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor

from clozeline.artifacts.shown_item import ShownItem
from clozeline.artifacts.task_metrics import Headline
from clozeline.params import FinetuneParams
from clozeline.tasks.heads import TaskModel
from clozeline.tasks.text_rows import TextRows
from clozeline.training.state import Batch


@dataclass(frozen=True)
class TaskInputs:
    """What a task is made of."""

    params: FinetuneParams
    """Of the class that the task's kind has."""
    seed: int
    encoder: Path
    data: Path
    pretraining_text: Path


@dataclass(frozen=True)
class TaskReport:
    """What the stage writes of a finished task."""

    headline: Headline
    figures: Mapping[str, object]
    """All others, for metrics/finetune/<task>.json."""
    confusion: Sequence[tuple[str, str]] = ()
    """(actual, predicted) of each test item that has a category, in the kind's own sense of it."""
    per_class: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Figures of each class (entity type, group of items), the same ones of all, `f1` among them. Beside the metrics,
    which stay a table that a person can read.
    """
    examples: Sequence[ShownItem] = ()
    test_texts: Sequence[str] = ()
    """Of each test item the text that is its own: what is looked for in the text of the pre-training,"""
    train_texts: Sequence[str] = ()
    """... and among these of the items that the task was trained on."""
    first_places: Mapping[str, str] = field(default_factory=dict)
    """Why a record was left out (or an answer of it moved) → where the first such one stands."""
    only_answer: str | None = None
    """What the model says to every test item, where it says the same to all and that is not right of all."""


def only_answer(said: Sequence[str], right: Sequence[str]) -> str | None:
    """What is said to every item, if it is the same and there is more than one right answer; of both, by item."""
    return said[0] if len(set(said)) == 1 and len(set(right)) > 1 else None


def shown(items: Sequence[ShownItem], num_examples: int) -> list[ShownItem]:
    """At most so many, in their order: as many wrong ones as right ones, where there are enough of both."""
    wrong = [place for place, item in enumerate(items) if not item.is_right]
    right = [place for place, item in enumerate(items) if item.is_right]
    num_wrong = min(len(wrong), max(num_examples // 2, num_examples - len(right)))
    chosen = sorted(wrong[:num_wrong] + right[: num_examples - num_wrong])
    return [items[place] for place in chosen]


class Task(Protocol):
    """A task with its data read and its model built: it can be trained, chosen by, tested, saved."""

    model: TaskModel
    batches_per_epoch: int

    @property
    def trained_on(self) -> Sequence[TextRows]:
        """All rows that `batches_from` takes from."""

    def batches_from(self, epoch: int, index: int) -> Iterator[Batch[Any]]:
        """Training batches without end, from batch `index` of epoch `epoch` on."""

    def loss_sum(self, inputs: Any) -> Tensor:
        """Summed over the targets of a batch, of which `Batch.num_targets` says how many there are."""

    def validation_score(self) -> float:
        """How good the model is on the validation part; higher is better."""

    def test(self) -> TaskReport:
        """Figures on the test part, which nothing has been chosen by, beside those of the baselines."""

    def save(self, out: Path) -> None:
        """Fill the folder with what transformers' Auto classes load."""
