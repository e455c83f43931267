"""Claim: all processes cut their shares of a batch into equally many parts, which together train like the batch."""

import pytest
import torch

from clozeline.language.objectives import DetectionBatch, TargetBatch
from clozeline.training.micro_batches import MicroBatches

CPU = torch.device("cpu")


def rows(num_rows: int, length: int = 8) -> TargetBatch:
    """Each row's first token is its number, and its only target."""
    input_ids_BL = torch.arange(num_rows)[:, None].expand(num_rows, length)
    return TargetBatch(input_ids_BL, None, torch.arange(num_rows) * length, torch.arange(num_rows))


def share(whole: TargetBatch, rank: int, world_size: int) -> tuple[TargetBatch, int]:
    """Return a share as the feed deals it out: its rows, and how many more rows another process has."""
    first, last = (whole.num_rows * (rank + place) // world_size for place in (0, 1))
    own = whole.rows(first, last) if first < last else whole.rows(0, 1).silent()
    return own, -(-whole.num_rows // world_size) - own.num_rows


@pytest.mark.parametrize("world_size", [1, 2, 3, 8])
@pytest.mark.parametrize("num_rows", [1, 2, 3, 5, 9, 16, 17])
@pytest.mark.parametrize("most_slots", [1, 8, 17, 30, 64])
def test_all_processes_cut_equally_many_parts_and_each_target_is_in_one(
    world_size: int, num_rows: int, most_slots: int
) -> None:
    whole = rows(num_rows)
    parts = [MicroBatches(most_slots, CPU).parts(*share(whole, rank, world_size)) for rank in range(world_size)]
    assert len({len(of_one) for of_one in parts}) == 1
    assert torch.cat([part.labels_T for of_one in parts for part in of_one]).tolist() == list(range(num_rows))
    assert all(part.num_rows for of_one in parts for part in of_one)


@pytest.mark.parametrize("world_size", [1, 2, 3])
@pytest.mark.parametrize("num_rows", [1, 2, 5, 16, 17])
def test_all_processes_halve_micro_batches_alike_down_to_single_rows(world_size: int, num_rows: int) -> None:
    """A process with fewer rows than another also halves, even if its parts are single rows."""
    shares = [share(rows(num_rows), rank, world_size) for rank in range(world_size)]
    each = [MicroBatches(None, CPU) for _ in shares]
    while True:
        halved = {micro.halve(*own) for micro, own in zip(each, shares, strict=True)}
        assert len(halved) == 1
        parts = [micro.parts(*own) for micro, own in zip(each, shares, strict=True)]
        assert len({len(of_one) for of_one in parts}) == 1
        if halved == {False}:
            break
    assert {part.num_rows for of_one in parts for part in of_one} == {1}


@pytest.mark.parametrize(
    ("num_rows", "length", "bound"),
    [
        (6, 64, 192),
        (2, 64, 64),
        (1, 64, None),  # a part has at least one row
        (6, 20, 64),  # half of it is 60, which params.yaml would refuse
        (3, 20, None),  # ... and 64 would not cut it
    ],
)
def test_the_suggested_micro_batch_size_is_valid_and_gives_smaller_parts(
    num_rows: int, length: int, bound: int | None
) -> None:
    batch = rows(num_rows, length)
    assert MicroBatches(None, CPU, longest_row=64).bound_to_set(batch) == bound
    if bound is not None:
        assert len(MicroBatches(bound, CPU).parts(batch)) > 1


def test_a_halved_micro_batch_is_reported_with_the_value_to_set(caplog: pytest.LogCaptureFixture) -> None:
    micro_batches = MicroBatches(None, CPU, longest_row=64)
    assert micro_batches.halve(rows(6, 20))
    assert micro_batches.most_slots == 60
    assert "Set `micro_batch_tokens: 64`" in caplog.text


def test_a_filler_row_has_no_targets_for_generator_or_discriminator() -> None:
    batch = rows(3)
    detecting = DetectionBatch(
        **vars(batch),
        text_ids_BL=batch.input_ids_BL,
        uniform_T=torch.rand(3, dtype=torch.float64),
        targets_per_token=torch.tensor(0.1),
    )
    silent = detecting.rows(0, 1).silent()
    assert (silent.num_rows, len(silent.slot_T), len(silent.labels_T), len(silent.uniform_T)) == (1, 0, 0, 0)
    assert silent.targets_per_token.item() == 0.0
