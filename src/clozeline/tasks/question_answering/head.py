"""An encoder with a head that points at the first and the last token of an answer.

Shapes: B rows, L longest row.
"""

from pathlib import Path

from torch import Tensor
from transformers import AutoModelForQuestionAnswering, PreTrainedModel

from clozeline.tasks import heads
from clozeline.tasks.encoded import EncodedBatch


def build(encoder: Path, seed: int) -> PreTrainedModel:
    """The encoder's weights under a fresh head; as `heads.build`."""
    return heads.build(encoder, AutoModelForQuestionAnswering, seed, {"num_labels": 2})


def end_logits(model: PreTrainedModel, batch: EncodedBatch) -> tuple[Tensor, Tensor]:
    """`start_BL` and `end_BL`."""
    output = model(**batch.inputs)
    return output.start_logits, output.end_logits
