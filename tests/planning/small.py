"""Models small enough to be built and trained in a moment."""

import torch

from clozeline.encoder.families import TokenIds
from clozeline.params import ModelParams, PretrainParams
from clozeline.training.precision import Precision

VOCAB_SIZE = 300
IDS = TokenIds(VOCAB_SIZE, 0, 2, 3)
FP32 = Precision.of("fp32", torch.device("cpu"))


def of_family(params: PretrainParams, family: str) -> ModelParams:
    return params.model.model_copy(update={"family": family})
