"""What every kind of task is to the training and to the stage: the table of kinds is in kinds.py."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor, nn

from clozeline.params import FinetuneParams
from clozeline.training.state import Batch


@dataclass(frozen=True)
class TaskInputs:
    """What a task is made of."""

    params: FinetuneParams
    seed: int
    encoder: Path
    data: Path
    pretraining_text: Path


@dataclass(frozen=True)
class TaskReport:
    """What the stage writes of a finished task."""

    figures: dict[str, object]
    """For metrics/finetune/<task>.json."""
    confusion: Sequence[tuple[str, str]]
    """(actual, predicted) of each test item."""
    per_class: Mapping[str, Mapping[str, float]]
    """Figures of each class, the same ones of all. Beside the metrics, which stay a table that a person can read."""


class Task(Protocol):
    """A task with its data read and its model built: it can be trained, chosen by, tested, saved."""

    model: nn.Module
    batches_per_epoch: int

    def batches_from(self, epoch: int, index: int) -> Iterator[Batch[Any]]:
        """Training batches without end, from batch `index` of epoch `epoch` on."""

    def loss_sum(self, inputs: Any) -> Tensor:
        """Summed over the items of a batch, nats."""

    def validation_score(self) -> float:
        """How good the model is on the validation part; higher is better."""

    def test(self) -> TaskReport:
        """Figures on the test part, which nothing has been chosen by, beside those of the baselines."""

    def save(self, out: Path) -> None:
        """Fill the folder with what transformers' Auto classes load."""
