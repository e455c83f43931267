"""Interface of every kind of task to training and to the stage, and what the kinds share.

They open the tokenizer, check that it fits, batch rows, run the model over all rows, and save it with held-out items.
The table of kinds is in kinds.py.

Shapes: T rows, B rows of a batch, X outputs of the model.
"""

import logging
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from clozeline.params.tasks import FinetuneParams
from clozeline.records.finetune import scored_items
from clozeline.records.finetune.scored_items import ConfigFacts, HeldOut
from clozeline.records.finetune.task_metrics import ShownItem
from clozeline.system.errors import TrainingError
from clozeline.tasks import heads, report, selection
from clozeline.tasks.heads import TaskModel
from clozeline.tasks.rows import EncodedBatch, Ids, TextRows, shuffled_batches, sorted_batches
from clozeline.tokenizing.tokenizer.folder import OpenTokenizer
from clozeline.training import micro_batches, state

Knobs = TypeVar("Knobs", bound=FinetuneParams, covariant=True)
_LOG = logging.getLogger(__name__)
# Share of unknown tokens above which the tokenizer probably does not fit the text.
_MOST_UNKNOWN = 0.2
# Rows of an evaluation batch per row of a training batch; evaluation needs no gradients.
_MEASURED_TOGETHER = 4
# Tokens of a batch whose activations fit into the caches of a CPU. The default encoder reads 1.7 times as many tokens
# per second in batches of 64 rows of 66 tokens as in batches of 512.
_CACHED_SLOTS = 1 << 12
Answer = TypeVar("Answer")


@dataclass(frozen=True)
class InputsOf(Generic[Knobs]):
    """Inputs of a task; `Knobs` is the class of params that belongs to its kind."""

    params: Knobs
    seed: int
    encoder: Path
    data: Path
    pretraining_text: Path
    family: str | None = None  # `pretrain.model.family` of the params, which opens your own encoder


# Inputs of a task of any kind.
TaskInputs = InputsOf[FinetuneParams]


class Task(ABC, Generic[selection.Item]):
    """A task with its data and its model, an encoder on rows of texts: ready to be trained, validated, tested, saved.

    A kind calls `feed` with its training rows, whose batches `batch` makes.
    """

    # Name of the method that the head is once `fit_head` fitted it; None for kinds that do not fit theirs.
    fitted: str | None = None

    def __init__(
        self,
        inputs: InputsOf[Any],
        splits: selection.Splits[selection.Item],
        model: TaskModel,
        opened: OpenTokenizer | None = None,
        *,
        reads_pairs: bool = False,
    ) -> None:
        """Open the tokenizer unless it is given, and check that it fits.

        Raises:
            ArtifactError: the tokenizer is missing, or was made for another model.
            ParamsError: `max_length` is longer than the encoder can read.
        """
        self.inputs, self.params, self.splits, self.model = inputs, inputs.params, splits, model
        self.opened = opened or OpenTokenizer.open(inputs.encoder)
        self.with_types = reads_pairs and heads.tells_pairs_apart(model)
        sizes = {"vocab_size": self.opened.vocab_size, "max_length": self.params.max_length}
        heads.check_fit(model, inputs.encoder, **sizes, pad_id=self.opened.special_ids.pad)

    def feed(self, *trained_on: TextRows) -> None:
        """Train on rows of texts, or of both texts of pairs; warn if many tokens are unknown to the tokenizer."""
        self.trained_on: Sequence[TextRows] = trained_on
        self.length_T: Ids = np.sum([rows.length_T for rows in trained_on], axis=0)
        self.batches_per_epoch = -(-len(self.length_T) // self.params.batch_size)
        ids, unknown = np.concatenate([ids for rows in trained_on for ids in rows.ids_T]), self.opened.special_ids.unk
        share = 0.0 if unknown is None else float((ids == unknown).mean())
        if share > _MOST_UNKNOWN:
            _LOG.warning(
                "%.0f %% of the tokens of the training texts are unknown to the tokenizer: it may belong to another "
                "language or encoder",
                100 * share,
            )

    def fit_head(self) -> None:
        """Fit the head on the frozen encoder, so that the model answers before the first step of training.

        Kinds that set `fitted` override it; it is called for no other.
        """
        raise NotImplementedError(type(self).__name__)

    @abstractmethod
    def batch(self, rows_B: Ids, epoch: int) -> Any:
        """Return these training rows with their targets."""

    def num_targets(self, rows_B: Ids) -> int:
        return len(rows_B)

    def batches_from(self, epoch: int, index: int) -> Iterator[state.Batch[Any]]:
        """Yield training batches without end, from batch `index` of epoch `epoch` on, bucketed by length.

        Seed and epoch decide which rows share a batch.
        """
        while True:
            batches = shuffled_batches(self.length_T, self.params.batch_size, self.inputs.seed, epoch)
            for place, rows_B in enumerate(batches[index:], start=index):
                num_tokens, num_targets = int(self.length_T[rows_B].sum()), self.num_targets(rows_B)
                yield state.Batch(epoch, place, self.batch(rows_B, epoch), num_tokens, num_targets)
            epoch, index = epoch + 1, 0

    @abstractmethod
    def loss_sum(self, inputs: Any) -> Tensor:
        """Return the loss summed over the targets of a batch; `Batch.num_targets` is their number."""

    @abstractmethod
    def validation_score(self) -> float:
        """Return the score of the model on the validation split; higher is better."""

    @abstractmethod
    def test(self) -> report.TaskReport:
        """Return figures of the model and its baselines on the test split, which no choice was based on."""

    def outputs(
        self,
        rows: TextRows,
        compute: Callable[[TaskModel, EncodedBatch], Tensor],
        row_T: Ids | None = None,
        *,
        with_types: bool | None = None,
    ) -> npt.NDArray[np.float32]:
        """Return what `compute` gives for these of the rows (all by default), in their order."""
        row_T = np.arange(len(rows)) if row_T is None else row_T
        batches = measuring_batches(rows.length_T[row_T], self.inputs)
        encoded = partial(rows.encoded, with_types=self.with_types if with_types is None else with_types)
        found = answers(self.model, batches, lambda place_B: encoded(row_T[place_B]), compute)
        pieces = [(place_B, output_BX.float().cpu().numpy()) for place_B, output_BX in found]
        place_T = np.concatenate([place_B for place_B, _ in pieces])
        outputs_TX: npt.NDArray[np.float32] = np.concatenate([output_BX for _, output_BX in pieces])
        return outputs_TX[np.argsort(place_T)]

    def num_seen(self, identities: Iterable[str]) -> int:
        """Return how many texts the encoder was pre-trained on, ignoring case and white space."""
        return selection.count_seen(identities, self.inputs.pretraining_text)

    def reported(self, figures: Mapping[str, object], items: Sequence[ShownItem], **fields: Any) -> report.TaskReport:
        """Return the report on the test split, of which `items` are the items; `fields` are others of `TaskReport`."""
        common = {"first_places": self.splits.count.first_places, "only_answer": report.only_answer_to(items)}
        return report.TaskReport(
            figures={**figures, "records": self.splits.count.by_reason},
            examples=report.shown(items, self.params.num_examples),
            **common | fields,
        )

    def facts(self) -> ConfigFacts:
        """Return what the configuration of the saved model says beside the keys of transformers."""
        return ConfigFacts()

    @abstractmethod
    def held_out(self, items: Sequence[selection.Item], most: int) -> Sequence[HeldOut]:
        """Return the items as records, of which at most `most` are kept."""

    def save(self, out: Path) -> None:
        """Write the model as stock Auto classes load it, with items of the validation and the test split beside it.

        Exported graphs are examined on the first, and a release compares the model with the champion on the second.
        """
        self.facts().add_to(self.model.config)
        heads.save(self.model, self.inputs.encoder, self.params.max_length, out, with_types=self.with_types)
        scored_items.write_held_out(out, self.held_out(self.splits.validation, scored_items.MAX_ITEMS))
        scored_items.write_test_items(out, self.held_out(self.splits.test, scored_items.MAX_TEST_ITEMS))


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
        with micro_batches.noting_shortage() as shortage, torch.inference_mode():
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
