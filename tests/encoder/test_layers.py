import pytest
import torch
from transformers.activations import ACT2FN

from clozeline.encoder.architecture import activation_of
from clozeline.encoder.layers import DropoutOf16Bits


@pytest.mark.parametrize("name", sorted(ACT2FN))
def test_every_activation_computes_what_transformers_computes(name: str) -> None:
    values_N = torch.linspace(-4, 4, 97)
    torch.manual_seed(0)  # laplace and xielu have weights, others none
    theirs = ACT2FN[name]
    torch.manual_seed(0)
    assert torch.equal(activation_of(name)(values_N), theirs(values_N))


@pytest.mark.parametrize("rate", [0.1, 1 - 2**-16])
def test_dropout_drops_its_rate_and_keeps_the_mean(rate: float) -> None:
    torch.manual_seed(1)
    of_ones = DropoutOf16Bits(rate)(torch.ones(1000, 1001))
    standard_error = (rate * (1 - rate) / of_ones.numel()) ** 0.5
    assert abs((of_ones == 0).double().mean().item() - rate) < 5 * standard_error
    assert abs(of_ones.double().mean().item() - 1) < 5 * standard_error / (1 - rate)
    assert len(of_ones.unique()) == 2


def test_neighbouring_elements_are_dropped_independently() -> None:
    torch.manual_seed(2)
    is_dropped = (DropoutOf16Bits(0.3)(torch.ones(400_000)) == 0).double()
    for distance in (1, 2, 3, 4):  # four elements share a draw
        both = (is_dropped[distance:] * is_dropped[:-distance]).mean().item()
        assert both == pytest.approx(0.09, abs=0.003)


def test_dropout_uses_the_same_mask_for_values_and_gradients_and_again_with_the_same_seed() -> None:
    dropout, given = DropoutOf16Bits(0.4), torch.randn(7, 13, requires_grad=True)
    torch.manual_seed(4)
    first, second = dropout(given), dropout(given)
    torch.manual_seed(4)
    again = dropout(given)
    again.sum().backward()
    assert given.grad is not None
    torch.testing.assert_close(again, given * given.grad)
    assert torch.equal(again, first)
    assert not torch.equal(first, second)


@pytest.mark.parametrize(("rate", "is_training", "left"), [(0.0, True, 1.0), (1.0, True, 0.0), (0.5, False, 1.0)])
def test_rate_0_keeps_everything_rate_1_drops_everything_and_evaluation_drops_nothing(
    rate: float, is_training: bool, left: float
) -> None:
    dropped = DropoutOf16Bits(rate).train(is_training)(torch.ones(9, dtype=torch.bfloat16))
    assert torch.equal(dropped, torch.full((9,), left, dtype=torch.bfloat16))
