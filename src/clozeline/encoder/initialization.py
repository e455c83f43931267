"""Random initial weights of our models, from the global random state."""

from collections.abc import Collection

import torch
from torch import nn

from clozeline.encoder.heads import Head
from clozeline.encoder.layers import Encoder

_ADDED = ("attention.output", "mlp.output")
"""Matrices that write to the residual stream."""


def draw_encoder(encoder: Encoder, only: Collection[str] | None = None) -> None:
    """Draw the weights of an encoder. `only`: names of the parameters to draw; None: all."""
    way = encoder.architecture.initialization
    for name, module in encoder.named_modules():
        std = way.out_std if name.endswith(_ADDED) else way.std
        _draw(module, name, std, way.cutoff, only)
    if way.zeroes_padding:
        _zero_padding(encoder, only)


def draw_head(head: Head, only: Collection[str] | None = None) -> None:
    """Draw the weights of a head. `only`: names of the parameters to draw; None: all."""
    stds = {"dense": head.shape.dense_std, "output": head.shape.output_std}
    for name, module in head.named_modules():
        _draw(module, name, stds.get(name, 0.0), head.shape.cutoff, only)


@torch.no_grad()
def _draw(module: nn.Module, name: str, std: float, cutoff: float | None, only: Collection[str] | None) -> None:
    for leaf, parameter in module.named_parameters(prefix=name, recurse=False):
        if only is not None and leaf not in only:
            continue
        if leaf.endswith("bias"):
            parameter.zero_()
        elif parameter.ndim == 1:
            parameter.fill_(1.0)
        elif cutoff is None:
            parameter.normal_(std=std)
        else:
            nn.init.trunc_normal_(parameter, std=std, a=-cutoff * std, b=cutoff * std)


@torch.no_grad()
def _zero_padding(encoder: Encoder, only: Collection[str] | None) -> None:
    for name, module in encoder.named_modules():
        is_drawn = only is None or f"{name}.weight" in only
        if isinstance(module, nn.Embedding) and module.padding_idx is not None and is_drawn:
            module.weight[module.padding_idx].zero_()
