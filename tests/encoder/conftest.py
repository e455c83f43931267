"""Small models of any family, and batches for them."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from clozeline.encoder.families import TokenIds
from clozeline.encoder.objectives import TargetBatch
from clozeline.params import ModelParams, read_params

PROJECT = Path(__file__).parents[2]
VOCAB_SIZE = 64
SHAPE = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48}

ParamsMaker = Callable[..., ModelParams]
BatchMaker = Callable[..., TargetBatch]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Models this small are slower on two."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


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


@pytest.fixture(scope="session")
def batch_of() -> BatchMaker:
    """`batch_of(*rows, pad_to=0)`: every content token is a target."""

    def batch_of(*rows: list[int], pad_to: int = 0) -> TargetBatch:
        longest = max(pad_to, *(len(row) for row in rows))
        input_ids_BL = torch.tensor([row + [0] * (longest - len(row)) for row in rows])
        mask_BL = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in rows])
        slots = [number * longest + place for number, row in enumerate(rows) for place in range(1, len(row) - 1)]
        mask_or_none = None if bool(mask_BL.all()) else mask_BL
        return TargetBatch(input_ids_BL, mask_or_none, torch.tensor(slots), input_ids_BL.reshape(-1)[slots])

    return batch_of
