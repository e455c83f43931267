import pytest
import torch
from transformers.activations import ACT2FN

from clozeline.encoder.architecture import activation_of, is_known_activation, known_activations


@pytest.mark.parametrize("name", sorted(ACT2FN))
def test_every_activation_computes_what_transformers_computes(name: str) -> None:
    values_N = torch.linspace(-4, 4, 97)
    torch.manual_seed(0)  # laplace and xielu have weights, others none
    theirs = ACT2FN[name]
    torch.manual_seed(0)
    assert torch.equal(activation_of(name)(values_N), theirs(values_N))
    assert is_known_activation(name)


def test_an_unknown_activation_is_not_accepted() -> None:
    assert not is_known_activation("gelou")
    assert "gelou" not in known_activations()
