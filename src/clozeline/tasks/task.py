"""Interface of every kind of task to training and to the stage. The table of kinds is in kinds.py."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

from torch import Tensor

from clozeline.artifacts.finetune.shown_item import ShownItem
from clozeline.artifacts.finetune.task_metrics import Headline
from clozeline.params import FinetuneParams
from clozeline.tasks.heads import TaskModel
from clozeline.tasks.text_rows import TextRows
from clozeline.training.state import Batch

Knobs = TypeVar("Knobs", bound=FinetuneParams, covariant=True)


@dataclass(frozen=True)
class InputsOf(Generic[Knobs]):
    """Inputs of a task; `Knobs` is the class of params that belongs to its kind."""

    params: Knobs
    seed: int
    encoder: Path
    data: Path
    pretraining_text: Path
    family: str | None = None
    """`pretrain.model.family` of the params, which opens your own encoder."""


TaskInputs = InputsOf[FinetuneParams]
"""Inputs of a task of any kind."""


@dataclass(frozen=True)
class TaskReport:
    """Results of a finished task that the stage writes."""

    headline: Headline
    figures: Mapping[str, object]
    """All other figures, for metrics/finetune/<task>.json."""
    confusion: Sequence[tuple[str, str]] = ()
    """(actual, predicted) category of each test item that has one; each kind defines its categories."""
    per_class: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Figures of each class (entity type, group of items). All classes have the same figures, including `f1`. A file of
    their own keeps the metrics readable.
    """
    examples: Sequence[ShownItem] = ()
    test_texts: Sequence[str] = ()
    """Text of each test item, searched for in the pre-training text ..."""
    train_texts: Sequence[str] = ()
    """... and among these texts of the training items."""
    test_pairs: Sequence[str] = ()
    """Both texts of each test pair as one text, for kinds whose pairs share texts ..."""
    train_pairs: Sequence[str] = ()
    """... and of each training pair."""
    scores: Sequence[tuple[float, float]] = ()
    """Right score and answer for each test pair, for kinds that answer with a number."""
    headline_on: Callable[[Sequence[int]], Headline] | None = None
    """Function: places in `test_rows` → the headline on the test items that have these; None for kinds without it."""
    first_places: Mapping[str, str] = field(default_factory=dict)
    """Reason why records were dropped (or an answer moved) → location of the first such record."""
    only_answer: str | None = None
    """The model's answer, if it gives the same answer to every test item and the right answers differ."""

    @property
    def test_rows(self) -> Sequence[str]:
        """The texts whose near-duplicates in `train_rows` give a test item away: pairs, or single texts."""
        return self.test_pairs or self.test_texts

    @property
    def train_rows(self) -> Sequence[str]:
        return self.train_pairs or self.train_texts


def only_answer(predicted: Sequence[str], right: Sequence[str]) -> str | None:
    """Return the answer given to every item if all are the same and `right` differs; None otherwise."""
    return predicted[0] if len(set(predicted)) == 1 and len(set(right)) > 1 else None


def shown(items: Sequence[ShownItem], num_examples: int) -> list[ShownItem]:
    """Return at most `num_examples` items in their order, half of them wrong if there are enough of both."""
    wrong = [place for place, item in enumerate(items) if not item.is_right]
    right = [place for place, item in enumerate(items) if item.is_right]
    num_wrong = min(len(wrong), max(num_examples // 2, num_examples - len(right)))
    chosen = sorted(wrong[:num_wrong] + right[: num_examples - num_wrong])
    return [items[place] for place in chosen]


class Task(Protocol):
    """A task with its data and model, ready to be trained, validated, tested and saved."""

    model: TaskModel
    batches_per_epoch: int

    @property
    def trained_on(self) -> Sequence[TextRows]:
        """All rows that `batches_from` draws from."""

    def batches_from(self, epoch: int, index: int) -> Iterator[Batch[Any]]:
        """Yield training batches without end, from batch `index` of epoch `epoch` on."""

    def loss_sum(self, inputs: Any) -> Tensor:
        """Return the loss summed over the targets of a batch; `Batch.num_targets` is their number."""

    def validation_score(self) -> float:
        """Return the score of the model on the validation split; higher is better."""

    def test(self) -> TaskReport:
        """Return figures of the model and its baselines on the test split, which no choice was based on."""

    def save(self, out: Path) -> None:
        """Write the model into the folder as transformers' Auto classes load it."""


@runtime_checkable
class StartsFitted(Protocol):
    """A task whose head can be fitted on the frozen encoder before the first step."""

    fitted: str
    """Name of the method that the fitted head is, without further training."""

    def fit_head(self) -> None:
        """Fit the head, so that the model answers before the first step of training."""
