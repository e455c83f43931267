"""Steps that all kinds of task share: open the tokenizer, check that it fits, and run the model over all rows.

Shapes: T rows, B rows of a batch.
"""

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

import numpy as np
import torch

from clozeline.errors import TrainingError
from clozeline.tasks import heads
from clozeline.tasks.encoded import EncodedBatch
from clozeline.tasks.task import TaskInputs
from clozeline.tasks.text_rows import Ids, TextRows, sorted_batches
from clozeline.tokenizer.folder import OpenTokenizer
from clozeline.training.out_of_memory import noting_shortage

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
