"""Regularization on top of a model's own dropout. It acts in training only and is never saved."""

from typing import Any

from clozeline.encoder.families import FAMILIES
from clozeline.encoder.model import Model
from clozeline.errors import ParamsError
from clozeline.params import ModelParams


def regularize(model: Any, params: ModelParams) -> None:
    """Set head dropout and stochastic depth on `model`, whether it is new or loaded.

    The rate of stochastic depth rises linearly from the first layer to the last (Huang et al. 2016, equation 4).

    Raises:
        ParamsError: stochastic depth is set, but the layers are not known to be pre-norm.
    """
    model.head_dropout = params.head_dropout
    if not params.stochastic_depth:
        return
    if not (isinstance(model, Model) and model.encoder.architecture.is_pre_norm):
        raise ParamsError(
            f"`stochastic_depth` needs pre-norm layers, which {type(model.base_model).__name__} does not have",
            do=f"set `stochastic_depth: 0.0`, or choose a family of {', '.join(_SKIPPABLE)}",
        )
    layers: Any = model.encoder.layers
    for number, layer in enumerate(layers, start=1):
        layer.skip_rate = params.stochastic_depth * number / len(layers)


_SKIPPABLE = [name for name, family in FAMILIES.items() if family.is_pre_norm]
