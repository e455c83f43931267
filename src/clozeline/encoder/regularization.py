"""Regularization that a model has in training only, beside its own dropout: hooks, of which nothing is saved.

Shapes: B rows, L longest row, H hidden.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedModel

from clozeline.encoder.families import FAMILIES
from clozeline.errors import ParamsError
from clozeline.params import ModelParams


def regularize(model: PreTrainedModel, params: ModelParams) -> None:
    """Lay head dropout and stochastic depth over `model`, whatever its start.

    Raises:
        ParamsError: stochastic depth, but the model's layers normalize what they give out.
    """
    if params.head_dropout:
        model.base_model.register_forward_hook(_HeadDropout(params.head_dropout))
    if params.stochastic_depth:
        layers = _layers_that_can_be_skipped(model)
        for number, layer in enumerate(layers, start=1):
            layer.register_forward_hook(_SkippedRows(params.stochastic_depth * number / len(layers)))


class _HeadDropout:
    """Dropout of the hidden states that the head is given."""

    def __init__(self, rate: float) -> None:
        self._rate = rate

    def __call__(self, module: nn.Module, inputs: tuple[Any, ...], output: Any) -> Any:
        if module.training:
            output.last_hidden_state = functional.dropout(output.last_hidden_state, self._rate, training=True)
        return output


class _SkippedRows:
    """Stochastic depth, row by row (Huang et al. 2016, section 3).

    The rate rises on a line from the first layer to the last (equation 4). What is kept is scaled up in training,
    where the paper scales down afterwards: so the trained weights are used as they are.
    """

    def __init__(self, rate: float) -> None:
        self._rate = rate

    def __call__(self, module: nn.Module, inputs: tuple[Any, ...], output: Any) -> Any:
        if not module.training:
            return output
        before_BLH: Tensor = inputs[0]
        after_BLH: Tensor = output[0] if isinstance(output, tuple) else output
        assert before_BLH.ndim == 3, "rows are told apart by the first of three axes"
        is_kept_B11 = torch.rand(len(before_BLH), 1, 1, device=before_BLH.device) >= self._rate
        added_BLH = (after_BLH - before_BLH) * is_kept_B11.to(after_BLH.dtype) / (1 - self._rate)
        skipped_BLH = before_BLH + added_BLH
        return (skipped_BLH, *output[1:]) if isinstance(output, tuple) else skipped_BLH


def _layers_that_can_be_skipped(model: PreTrainedModel) -> nn.ModuleList:
    for family in FAMILIES.values():
        is_of_family = any(isinstance(model, form.model_class) for form in family.forms.values())
        if is_of_family and family.layers is not None:
            return family.layers(model)
    able = [name for name, family in FAMILIES.items() if family.layers is not None]
    raise ParamsError(
        "params.yaml: `pretrain.model.stochastic_depth` needs layers that can be skipped",
        given=f"{type(model).__name__}: its layers normalize what they give out, or are not known",
        expected=f"a family with pre-norm layers: {', '.join(able)}",
        do="set `stochastic_depth: 0.0`, or choose another family",
    )
