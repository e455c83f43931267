"""Encoder that embeds each text as one vector.

Shapes: B texts, L longest, H hidden.
"""

from pathlib import Path

import torch
from torch import Tensor

from clozeline.tasks import heads
from clozeline.tasks.encoded import EncodedBatch
from clozeline.tasks.heads import TaskModel
from clozeline.tasks.pooling import mean_of_tokens


def build(encoder: Path, seed: int, family: str | None = None) -> TaskModel:
    """Return the encoder without a head; raises as `heads.build`. `seed` draws the pooler of families that have one,
    which nothing uses.
    """
    return heads.build(encoder, "feature-extraction", seed, {}, family=family)


def embeddings(model: TaskModel, batch: EncodedBatch) -> Tensor:
    """Return `embedding_BH`, vectors of length 1 in fp32, whatever the precision of the model."""
    mask_BL = batch.attention_mask_BL
    hidden_BLH = model.base_model(**batch.inputs).last_hidden_state
    return mean_of_tokens(hidden_BLH.float(), torch.ones_like(batch.input_ids_BL) if mask_BL is None else mask_BL)
