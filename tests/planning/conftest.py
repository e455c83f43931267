"""Params of models small enough to be built and trained in a moment."""

from pathlib import Path

import pytest
import torch

from clozeline.encoder.families.layout import TokenIds
from clozeline.params.model import ModelParams
from clozeline.params.pretraining import PretrainParams
from clozeline.params.reading import read_params
from clozeline.training.micro_batches import Precision

VOCAB_SIZE = 300
IDS = TokenIds(VOCAB_SIZE, 0, 2, 3)
FP32 = Precision.of("fp32", torch.device("cpu"))


@pytest.fixture(scope="session")
def params() -> PretrainParams:
    params = read_params(Path(__file__).parents[2] / "params.yaml").pretrain
    sizes = {"num_hidden_layers": 3, "hidden_size": 64, "num_attention_heads": 2, "intermediate_size": 96}
    model = params.model.model_copy(update={"size": None, **sizes, "max_position_embeddings": 64})
    return params.model_copy(update={"model": model, "max_length": 32, "batch_tokens": 128})


def of_family(params: PretrainParams, family: str) -> ModelParams:
    return params.model.model_copy(update={"family": family})
