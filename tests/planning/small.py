"""Models small enough to be built and trained in a moment."""

import torch

from clozeline.encoder.families.layout import TokenIds
from clozeline.params.model import ModelParams
from clozeline.params.pretraining import PretrainParams
from clozeline.training.micro_batches import Precision

VOCAB_SIZE = 300
IDS = TokenIds(VOCAB_SIZE, 0, 2, 3)
FP32 = Precision.of("fp32", torch.device("cpu"))


def of_family(params: PretrainParams, family: str) -> ModelParams:
    return params.model.model_copy(update={"family": family})
