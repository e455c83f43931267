"""An encoder that turns each text into one vector.

Shapes: B texts, L longest, H hidden.
"""

from pathlib import Path

import torch
from torch import Tensor
from transformers import AutoModel, PreTrainedModel

from clozeline.tasks import heads
from clozeline.tasks.encoded import EncodedBatch
from clozeline.tasks.pooling import mean_of_tokens


def build(encoder: Path, seed: int) -> PreTrainedModel:
    """The encoder's weights without any head; as `heads.build`. `seed` is for a family that pools: nothing uses it."""
    return heads.build(encoder, AutoModel, seed, {})


def embeddings(model: PreTrainedModel, batch: EncodedBatch) -> Tensor:
    """`embedding_BH`, each of length 1, in fp32 whatever the model computes in."""
    mask_BL = batch.attention_mask_BL
    hidden_BLH = model(**batch.inputs).last_hidden_state
    return mean_of_tokens(hidden_BLH.float(), torch.ones_like(batch.input_ids_BL) if mask_BL is None else mask_BL)
