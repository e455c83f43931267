"""Params of models small enough to be built and trained in a moment."""

from pathlib import Path

import pytest

from clozeline.params.pretraining import PretrainParams
from clozeline.params.reading import read_params


@pytest.fixture(scope="session")
def params() -> PretrainParams:
    params = read_params(Path(__file__).parents[2] / "params.yaml").pretrain
    model = params.model.model_copy(
        update={
            "size": None,
            "num_hidden_layers": 3,
            "hidden_size": 64,
            "num_attention_heads": 2,
            "intermediate_size": 96,
            "max_position_embeddings": 64,
        }
    )
    return params.model_copy(update={"model": model, "max_length": 32, "batch_tokens": 128})
