"""Claim: the vector of a text is the mean over its real tokens, of length 1."""

import pytest
import torch

from clozeline.encoder.layers import mean_of_tokens


@pytest.mark.parametrize("padding", [0.0, 9.0, -1e4])
def test_padding_is_left_out_of_the_mean(padding: float) -> None:
    hidden_BLH = torch.tensor([[[3.0, 0.0], [3.0, 8.0], [padding, padding]], [[0.0, 2.0], [0.0, 5.0], [0.0, 5.0]]])
    attention_mask_BL = torch.tensor([[1, 1, 0], [1, 1, 1]])
    expected_BH = torch.tensor([[0.6, 0.8], [0.0, 1.0]])
    torch.testing.assert_close(mean_of_tokens(hidden_BLH, attention_mask_BL), expected_BH)
