"""Batches for small models."""

from collections.abc import Callable, Iterator

import pytest
import torch

from clozeline.language.objectives import TargetBatch

BatchMaker = Callable[..., TargetBatch]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Models this small are slower on two."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


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
