"""Regularization that a model has in training only, beside its own dropout: nothing of it is saved."""

from typing import Any

from clozeline.encoder.families import FAMILIES
from clozeline.encoder.model import Model
from clozeline.errors import ParamsError
from clozeline.params import ModelParams


def regularize(model: Any, params: ModelParams) -> None:
    """Lay head dropout and stochastic depth over `model`, whatever its start.

    The rate of stochastic depth rises on a line from the first layer to the last (Huang et al. 2016, equation 4).

    Raises:
        ParamsError: stochastic depth, but the model's layers normalize what they give out.
    """
    model.head_dropout = params.head_dropout
    if not params.stochastic_depth:
        return
    if not (isinstance(model, Model) and model.encoder.architecture.is_pre_norm):
        raise ParamsError(
            "params.yaml: `pretrain.model.stochastic_depth` needs layers that can be skipped",
            given=f"{type(model.base_model).__name__}: its layers normalize what they give out, or are not known",
            expected=f"a family with pre-norm layers: {', '.join(_SKIPPABLE)}",
            do="set `stochastic_depth: 0.0`, or choose another family",
        )
    layers: Any = model.encoder.layers
    for number, layer in enumerate(layers, start=1):
        layer.skip_rate = params.stochastic_depth * number / len(layers)


_SKIPPABLE = [name for name, family in FAMILIES.items() if family.is_pre_norm]
