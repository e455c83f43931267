"""Memory of a training step: weights, gradients, the optimizer's state, and activations."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Self

import torch

from clozeline.main_memory import available_bytes
from clozeline.model.detection import parts_of
from clozeline.model.language_model import LanguageModel
from clozeline.params import PretrainParams
from clozeline.planning.compute import hidden_size, num_layers
from clozeline.planning.counting import ParameterCount, layer_matrices
from clozeline.training.precision import Name

_FP32_BYTES = 4
_PER_ELEMENT: Mapping[Name, int] = MappingProxyType({"fp32": 4, "bf16": 2, "fp16": 2})

OPTIMIZER_NUMBERS: Mapping[str, Callable[[ParameterCount], int]] = MappingProxyType(
    {
        "adamw": lambda count: 2 * count.total,
        "muon": lambda count: 2 * count.total - count.layer_matrices,
        "novograd": lambda count: count.total,
        "lamb": lambda count: 2 * count.total,
        "stableadamw": lambda count: 2 * count.total,
    }
)
"""Keyed by `optimizer.kind`: fp32 numbers that it keeps, beside a few for each tensor."""


@dataclass(frozen=True)
class StepMemory:
    """Bytes on each device, all of them at the end of a forward pass."""

    weights: int
    gradients: int
    optimizer: int
    activations: int
    """An estimate: what the backward pass is left, for the tokens that are in memory at once."""

    @property
    def total(self) -> int:
        return self.weights + self.gradients + self.optimizer + self.activations

    @classmethod
    def of(cls, model: LanguageModel, params: PretrainParams, precision: Name, target_share: float) -> Self:
        count = ParameterCount.of(model)
        num_tokens = params.micro_batch_tokens or params.batch_tokens
        kept = sum(_kept_of_layers(part, params.gradient_checkpointing) for part in parts_of(model))
        elements = kept * num_tokens
        logits = 2 * target_share * num_tokens * model.config.vocab_size
        return cls(
            weights=count.fp32_bytes,
            gradients=count.fp32_bytes,
            optimizer=OPTIMIZER_NUMBERS[params.optimizer.kind](count) * _FP32_BYTES,
            activations=round(elements * _PER_ELEMENT[precision] + logits * _FP32_BYTES),
        )


def _kept_of_layers(model: LanguageModel, is_recomputed: bool) -> int:
    """Numbers for each token.

    Korthikanti et al. 2022, section 4.1, with attention that is not stored: 8·hidden + both sides of the MLP's inner
    width for each layer. Recomputed: hidden for each layer, and one layer whole.
    """
    hidden, matrices = hidden_size(model), list(layer_matrices(model))
    widest_out, widest_in = (max((matrix.shape[axis] for matrix in matrices), default=hidden) for axis in (0, 1))
    layer = 8 * hidden + widest_out + widest_in
    return num_layers(model) * hidden + layer if is_recomputed else num_layers(model) * layer


def device_bytes() -> int:
    """The GPU's own memory where one would train, whatever the container allows; else what this process may use."""
    if torch.cuda.is_available():
        return int(torch.cuda.mem_get_info()[1])
    return available_bytes()
