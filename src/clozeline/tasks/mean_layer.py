"""A layer that lets a head on the first token read the mean over all tokens, in a layout that stock classes load.

Stock classifiers of BERT and its relatives read the first token through a dense layer. Sentence encoders and masked
language models are trained at all tokens, so the mean says more: docs/tasks.md has the figures of both.

Shapes: H hidden.
"""

from typing import Any

import torch
from torch import nn

from clozeline.encoder.families import LAYOUTS
from clozeline.encoder.layers import Layer
from clozeline.encoder.model import Model

_MEAN_OVER_TOKEN = 10.0
"""Weight of the mean beside the token itself, which the residual connection adds."""
_DENSE_SCALE = 0.1
_NEARLY_LINEAR = frozenset({"tanh", "gelu"})
"""Activations of heads that are nearly linear for values of the order of `_DENSE_SCALE`."""


def add_to(config: Any) -> bool:
    """Add a layer to the configuration if the classifier of its family would read the first token; return whether."""
    layout = LAYOUTS.get(config.model_type)
    if layout is None or "text-classification" not in layout.heads:
        return False
    head, encoder = layout.heads["text-classification"].shape(config), layout.architecture(config)
    shares_weights = encoder.weights_of_layer is not None
    if head.pooling != "first" or encoder.is_pre_norm or encoder.is_causal or encoder.is_fused or shares_weights:
        return False
    config.num_hidden_layers += 1
    return True


def names(model: Model) -> frozenset[str]:
    """Return the published names of the layer's weights."""
    number = len(model.encoder.layers) - 1
    own = [name for name, _ in model.named_parameters() if name.startswith(f"encoder.layers.{number}.")]
    return frozenset(model.layout.published(own, model.config, model.kind).values())


@torch.no_grad()
def write_to(model: Model) -> None:
    """Set the fresh last layer to the mean over tokens, and the dense layer of the head to the identity.

    Keys of 0 make every token attend to all tokens alike. Queries and the input of the MLP stay random, so that the
    layer can be trained like any other.
    """
    layer = model.encoder.layers[-1]
    assert isinstance(layer, Layer)
    layer.attention.key.weight.zero_()
    nn.init.eye_(layer.attention.value.weight)
    nn.init.eye_(layer.attention.output.weight).mul_(_MEAN_OVER_TOKEN)
    layer.mlp.output.weight.zero_()
    if model.head.dense is not None and model.head.shape.activation in _NEARLY_LINEAR:
        nn.init.eye_(model.head.dense.weight).mul_(_DENSE_SCALE)
