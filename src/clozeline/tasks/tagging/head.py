"""Encoder with a tagging head.

Shapes: B rows, L longest row, C tags.
"""

from collections.abc import Sequence
from pathlib import Path

from torch import Tensor

from clozeline.tasks import heads
from clozeline.tasks.encoded import EncodedBatch
from clozeline.tasks.heads import TaskModel


def build(encoder: Path, tags: Sequence[str], seed: int, family: str | None = None) -> TaskModel:
    """Return the encoder with a fresh head for `tags`; raises as `heads.build`."""
    changes = {
        "id2label": dict(enumerate(tags)),
        "label2id": {tag: place for place, tag in enumerate(tags)},
    }
    return heads.build(encoder, "token-classification", seed, changes, family=family)


def tag_logits(model: TaskModel, batch: EncodedBatch) -> Tensor:
    """Return `logits_BLC`."""
    logits_BLC: Tensor = model(**batch.inputs).logits
    return logits_BLC
