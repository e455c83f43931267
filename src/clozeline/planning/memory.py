"""Memory of a training step: weights, gradients, the optimizer's state, and activations."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Self

import torch

from clozeline.language_modelling.language_model import LanguageModel
from clozeline.machine.memory import available_bytes
from clozeline.params import PretrainParams
from clozeline.planning.activations import kept_per_token
from clozeline.planning.counting import ParameterCount
from clozeline.training.optimizers.building import OPTIMIZERS
from clozeline.training.precision import Name, Precision

_FP32_BYTES = 4
_PER_ELEMENT: Mapping[Name, int] = MappingProxyType({"fp32": 4, "bf16": 2, "fp16": 2})

TOO_LARGE = (
    "A step does not fit into this device's memory: set `micro_batch_tokens` (the step stays the same) or"
    " `gradient_checkpointing: true` (a third slower), or choose a smaller size."
)
"""Advice if a step needs more memory than the device has."""


@dataclass(frozen=True)
class StepMemory:
    """Bytes on each device at the end of a forward pass, when all of them are held at once."""

    weights: int
    gradients: int
    optimizer: int
    activations: int
    """Estimate of what is kept for the backward pass, for the tokens of one micro-batch."""

    @property
    def total(self) -> int:
        return self.weights + self.gradients + self.optimizer + self.activations

    @classmethod
    def of(cls, model: LanguageModel, params: PretrainParams, precision: Precision, target_share: float) -> Self:
        count = ParameterCount.of(model)
        num_tokens = params.micro_batch_tokens or params.batch_tokens
        elements = kept_per_token(model, params, is_on_cpu=precision.device.type == "cpu") * num_tokens
        logits = 2 * target_share * num_tokens * model.config.vocab_size
        return cls(
            weights=count.fp32_bytes,
            gradients=count.fp32_bytes,
            optimizer=optimizer_numbers(params.optimizer.kind, count) * _FP32_BYTES,
            activations=round(elements * _PER_ELEMENT[precision.name] + logits * _FP32_BYTES),
        )


def optimizer_numbers(name: str, count: ParameterCount) -> int:
    """Return how many fp32 numbers an optimizer of kind `name` keeps, except a few per tensor."""
    kind = OPTIMIZERS[name]
    others = count.total - count.layer_matrices
    return kind.num_states * others + kind.num_states_of_hidden * count.layer_matrices


def device_bytes() -> int:
    """Return the memory of the GPU in bytes if there is one; otherwise the main memory that this process may use."""
    if torch.cuda.is_available():
        return int(torch.cuda.mem_get_info()[1])
    return available_bytes()
