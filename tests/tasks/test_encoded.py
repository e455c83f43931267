"""Claim: the parts of a split batch make up the whole batch, with all the inputs of any family."""

import pytest
import torch

from clozeline.tasks.rows import EncodedBatch, TargetedBatch

IDS_BL = torch.arange(12).reshape(4, 3)


@pytest.mark.parametrize("with_types", [True, False])
@pytest.mark.parametrize("with_mask", [True, False])
def test_parts_of_a_batch_contain_its_rows(with_mask: bool, with_types: bool) -> None:
    mask_BL, types_BL = (IDS_BL + 100 if with_mask else None), (IDS_BL + 200 if with_types else None)
    batch = TargetedBatch(EncodedBatch(IDS_BL, mask_BL, types_BL), torch.arange(4))
    assert (batch.num_rows, batch.num_slots) == (4, 12)
    assert set(batch.encoded.inputs) == {
        "input_ids",
        *(["attention_mask"] if with_mask else []),
        *(["token_type_ids"] if with_types else []),
    }
    parts = [batch.rows(0, 1), batch.rows(1, 4).to(torch.device("cpu"))]
    assert torch.equal(torch.cat([part.targets_B for part in parts]), batch.targets_B)
    for name, tensor in batch.encoded.inputs.items():
        assert torch.equal(torch.cat([part.encoded.inputs[name] for part in parts]), tensor)
