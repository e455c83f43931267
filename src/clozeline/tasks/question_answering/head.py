"""Encoder with a head that scores each token as the first and as the last of an answer.

Shapes: B rows, L longest row.
"""

from pathlib import Path

from torch import Tensor

from clozeline.tasks import heads
from clozeline.tasks.encoded import EncodedBatch
from clozeline.tasks.heads import TaskModel


def build(encoder: Path, seed: int, family: str | None = None) -> TaskModel:
    """Return the encoder with a fresh head; raises as `heads.build`."""
    return heads.build(encoder, "question-answering", seed, {"num_labels": 2}, family=family)


def end_logits(model: TaskModel, batch: EncodedBatch) -> tuple[Tensor, Tensor]:
    """Return the logits `start_BL` and `end_BL`."""
    start_BL, end_BL = model(**batch.inputs).logits.unbind(dim=-1)
    return start_BL, end_BL
