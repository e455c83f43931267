"""Activations by the names that configurations use.

Those of the families' published sizes are torch's own: importing transformers' table costs every stage a second.
"""

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType

from torch import nn

_OWN: Mapping[str, Callable[[], nn.Module]] = MappingProxyType(
    {
        "gelu": nn.GELU,
        "gelu_pytorch_tanh": partial(nn.GELU, approximate="tanh"),
        "relu": nn.ReLU,
        "silu": nn.SiLU,
        "swish": nn.SiLU,
        "tanh": nn.Tanh,
    }
)


def activation_of(name: str) -> nn.Module:
    """Return a new module.

    Raises:
        KeyError: `name` is not among `known_activations`.
    """
    if name in _OWN:
        return _OWN[name]()
    from transformers.activations import ACT2FN

    module: nn.Module = ACT2FN[name]
    return module


def is_known_activation(name: str) -> bool:
    return name in _OWN or name in known_activations()


def known_activations() -> list[str]:
    """Return the names that transformers knows, sorted."""
    from transformers.activations import ACT2FN

    return sorted(ACT2FN)
