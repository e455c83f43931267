"""Interface of every kind of task to training and to the stage, and the steps that all kinds share.

The steps are: open the tokenizer, check that it fits, and run the model over all rows. The table of kinds is in
kinds.py.

Shapes: T rows, B rows of a batch.
"""

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from clozeline.params.tasks import FinetuneParams
from clozeline.records.finetune.task_metrics import Headline, ShownItem
from clozeline.system.errors import TrainingError
from clozeline.tasks import heads
from clozeline.tasks.heads import TaskModel
from clozeline.tasks.rows import EncodedBatch, Ids, TextRows, sorted_batches
from clozeline.tokenizing.tokenizer.folder import OpenTokenizer
from clozeline.training.micro_batches import noting_shortage
from clozeline.training.state import Batch

Knobs = TypeVar("Knobs", bound=FinetuneParams, covariant=True)
_LOG = logging.getLogger(__name__)
_MOST_UNKNOWN = 0.2
"""Share of unknown tokens above which the tokenizer probably does not fit the text."""
_MEASURED_TOGETHER = 4
"""Rows of an evaluation batch per row of a training batch; evaluation needs no gradients."""
_CACHED_SLOTS = 1 << 12
"""Tokens of a batch whose activations fit into the caches of a CPU. The default encoder reads 1.7 times as many tokens
per second in batches of 64 rows of 66 tokens as in batches of 512.
"""
Answer = TypeVar("Answer")


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


def opened_for(model: heads.TaskModel, inputs: TaskInputs) -> OpenTokenizer:
    """Return the encoder's tokenizer.

    Raises:
        ArtifactError: the tokenizer is missing, or was made for another model.
        ParamsError: `max_length` is longer than the encoder can read.
    """
    opened = OpenTokenizer.open(inputs.encoder)
    check_fit(model, opened, inputs)
    return opened


def check_fit(model: heads.TaskModel, opened: OpenTokenizer, inputs: TaskInputs) -> None:
    """Check that tokenizer, model and `max_length` of the task fit together.

    Raises:
        ArtifactError: the tokenizer was made for another model.
        ParamsError: `max_length` is longer than the encoder can read.
    """
    heads.check_fit(
        model,
        inputs.encoder,
        vocab_size=opened.vocab_size,
        max_length=inputs.params.max_length,
        pad_id=opened.special_ids.pad,
    )


def warn_of_unknown_tokens(opened: OpenTokenizer, *trained_on: TextRows) -> None:
    """Log a warning if many tokens are unknown: the tokenizer is probably for another language or model."""
    ids = np.concatenate([ids for rows in trained_on for ids in rows.ids_T])
    share = 0.0 if opened.special_ids.unk is None else float((ids == opened.special_ids.unk).mean())
    if share > _MOST_UNKNOWN:
        _LOG.warning(
            "%.0f %% of the tokens of the training texts are unknown to the tokenizer: it may belong to another "
            "language or encoder",
            100 * share,
        )


def num_batches(num_rows: int, inputs: TaskInputs) -> int:
    """Return the number of training batches in an epoch."""
    return -(-num_rows // inputs.params.batch_size)


def measuring_batches(length_T: Ids, inputs: TaskInputs) -> list[Ids]:
    """Return evaluation batches that hold every row once, bucketed by length."""
    most_slots = None if torch.cuda.is_available() else _CACHED_SLOTS
    return sorted_batches(length_T, _MEASURED_TOGETHER * inputs.params.batch_size, most_slots)


def answers(
    model: heads.TaskModel,
    batches: Iterable[Ids],
    encoded: Callable[[Ids], EncodedBatch],
    answer: Callable[[heads.TaskModel, EncodedBatch], Answer],
) -> Iterator[tuple[Ids, Answer]]:
    """Yield `rows_B` of each batch with the model's answer, computed without gradients.

    If memory runs out, this batch and all later ones are halved.

    Raises:
        TrainingError: a single row does not fit into memory.
    """
    model.eval()
    waiting = deque(batches)
    while waiting:
        rows_B = waiting.popleft()
        with noting_shortage() as shortage, torch.inference_mode():
            found = answer(model, encoded(rows_B).to(model.device))
        if shortage.requested is None:
            yield rows_B, found
        else:
            waiting = deque(_halves(rows_B, waiting, shortage.requested))


def _halves(rows_B: Ids, waiting: Iterable[Ids], message: str) -> Iterator[Ids]:
    """Yield the halves of `rows_B` and of each batch after it. `message` is the message of the failed allocation."""
    if len(rows_B) == 1:
        raise TrainingError(
            f"out of memory on one row of the validation or test split: {message}",
            do="lower `max_length` of this task, or choose a smaller encoder",
        )
    _LOG.warning("out of memory with a batch of %d rows: evaluation continues with half as many", len(rows_B))
    for whole_B in (rows_B, *waiting):
        yield from (half_B for half_B in np.array_split(whole_B, 2) if len(half_B))
