"""How a task begins and how it is asked: a model, the tokenizer that was trained with it, and answers to all rows.

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
"""Share of unknown tokens above which a tokenizer is hardly for this text."""
_MEASURED_TOGETHER = 4
"""A batch that is only measured may be so many times larger: it needs no gradients."""
_CACHED_SLOTS = 1 << 12
"""On a CPU: what is computed of so many tokens stays in its caches. The default encoder reads 1.7 times as many tokens
per second in batches of 64 rows of 66 tokens as in batches of 512.
"""
Answer = TypeVar("Answer")


def opened_for(model: heads.TaskModel, inputs: TaskInputs) -> OpenTokenizer:
    """The encoder's tokenizer.

    Raises:
        ArtifactError: there is none, or it was made for another model.
        ParamsError: `max_length` is longer than the encoder can read.
    """
    opened = OpenTokenizer.open(inputs.encoder)
    check_fit(model, opened, inputs)
    return opened


def check_fit(model: heads.TaskModel, opened: OpenTokenizer, inputs: TaskInputs) -> None:
    """Raises:
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
    """Say so, if the tokenizer knows so little of the text that it must be that of another model or language."""
    ids = np.concatenate([ids for rows in trained_on for ids in rows.ids_T])
    share = 0.0 if opened.special_ids.unk is None else float((ids == opened.special_ids.unk).mean())
    if share > _MOST_UNKNOWN:
        _LOG.warning(
            "%.0f %% of the tokens of the training texts are unknown to the tokenizer: is it that of another language, "
            "or of another checkpoint?",
            100 * share,
        )


def num_batches(num_rows: int, inputs: TaskInputs) -> int:
    """Of an epoch."""
    return -(-num_rows // inputs.params.batch_size)


def measuring_batches(length_T: Ids, inputs: TaskInputs) -> list[Ids]:
    """All rows once, those of like length together."""
    most_slots = None if torch.cuda.is_available() else _CACHED_SLOTS
    return sorted_batches(length_T, _MEASURED_TOGETHER * inputs.params.batch_size, most_slots)


def answers(
    model: heads.TaskModel,
    batches: Iterable[Ids],
    encoded: Callable[[Ids], EncodedBatch],
    answer: Callable[[heads.TaskModel, EncodedBatch], Answer],
) -> Iterator[tuple[Ids, Answer]]:
    """`rows_B` of each batch, and what the model answers to them, without gradients. Where memory runs out, this batch
    and all that wait are taken apart.

    Raises:
        TrainingError: one row alone does not fit into memory.
    """
    model.eval()
    waiting = deque(batches)
    while waiting:
        rows_B = waiting.popleft()
        with noting_shortage() as shortage, torch.inference_mode():
            found = answer(model, encoded(rows_B).to(model.device))
        if shortage.told is None:
            yield rows_B, found
        else:
            waiting = deque(_halves(rows_B, waiting, shortage.told))


def _halves(rows_B: Ids, waiting: Iterable[Ids], told: str) -> Iterator[Ids]:
    """Of these rows, and of each batch behind them. `told`: of how much memory was asked for."""
    if len(rows_B) == 1:
        raise TrainingError(
            "out of memory on one row of the parts that judge",
            given=f"1 row at once; {told}",
            expected="a row, and the model, that fit into memory",
            do="in params.yaml, lower `max_length` of this task, or take a smaller encoder",
        )
    _LOG.warning("out of memory with %d rows at once: judging goes on with half as many", len(rows_B))
    for whole_B in (rows_B, *waiting):
        yield from (half_B for half_B in np.array_split(whole_B, 2) if len(half_B))
