"""Small models of any family: their params and the ids of their tokens."""

from collections.abc import Callable
from pathlib import Path

import pytest

from clozeline.encoder.families.layout import TokenIds
from clozeline.params.model import ModelParams
from clozeline.params.reading import read_params

PROJECT = Path(__file__).parents[1]
VOCAB_SIZE = 64
SHAPE = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48}

ParamsMaker = Callable[..., ModelParams]


@pytest.fixture(scope="session")
def ids() -> TokenIds:
    return TokenIds(VOCAB_SIZE, pad_id=0, cls_id=2, sep_id=3)


@pytest.fixture(scope="session")
def params_of() -> ParamsMaker:
    """`params_of(family, **knobs)`: the project's own section, with a small shape."""
    project = read_params(PROJECT / "params.yaml").pretrain.model

    def params_of(family: str, **knobs: object) -> ModelParams:
        changes = {"family": family, "size": None, "max_position_embeddings": 64, **SHAPE, **knobs}
        return ModelParams.model_validate(project.model_dump() | changes)

    return params_of
