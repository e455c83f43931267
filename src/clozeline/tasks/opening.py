"""How a task begins and how it is asked: a model, the tokenizer that was trained with it, and answers to all rows.

Shapes: T rows, B rows of a batch.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

import torch

from clozeline.model import heads
from clozeline.model.encoded import EncodedBatch
from clozeline.tasks.rows import Ids, sorted_batches
from clozeline.tasks.task import TaskInputs
from clozeline.tokens.tokenizer import OpenTokenizer

_MEASURED_TOGETHER = 4
"""A batch that is only measured may be so many times larger: it needs no gradients."""
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


def num_batches(num_rows: int, inputs: TaskInputs) -> int:
    """Of an epoch."""
    return -(-num_rows // inputs.params.batch_size)


def measuring_batches(length_T: Ids, inputs: TaskInputs) -> list[Ids]:
    """All rows once, those of like length together."""
    return sorted_batches(length_T, _MEASURED_TOGETHER * inputs.params.batch_size)


def answers(
    model: heads.TaskModel,
    batches: Iterable[Ids],
    encoded: Callable[[Ids], EncodedBatch],
    answer: Callable[[heads.TaskModel, EncodedBatch], Answer],
) -> Iterator[tuple[Ids, Answer]]:
    """`rows_B` of each batch, and what the model answers to them, without gradients."""
    model.eval()
    for rows_B in batches:
        with torch.inference_mode():
            found = answer(model, encoded(rows_B).to(model.device))
        yield rows_B, found
