"""Memory of a training step: weights, gradients, the optimizer's state, and activations."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Self

import torch

from clozeline.encoder.language_model import LanguageModel
from clozeline.machine.main_memory import available_bytes
from clozeline.params import PretrainParams
from clozeline.planning.activations import kept_per_token
from clozeline.planning.counting import ParameterCount
from clozeline.training.precision import Name, Precision

_FP32_BYTES = 4
_PER_ELEMENT: Mapping[Name, int] = MappingProxyType({"fp32": 4, "bf16": 2, "fp16": 2})

TOO_LARGE = (
    "A step does not fit into this device's memory: set `micro_batch_tokens` (the step stays the same) or"
    " `gradient_checkpointing: true` (a third slower), or choose a smaller size."
)
"""What to do where a step needs more than there is."""
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
    def of(cls, model: LanguageModel, params: PretrainParams, precision: Precision, target_share: float) -> Self:
        count = ParameterCount.of(model)
        num_tokens = params.micro_batch_tokens or params.batch_tokens
        elements = kept_per_token(model, params, is_on_cpu=precision.device.type == "cpu") * num_tokens
        logits = 2 * target_share * num_tokens * model.config.vocab_size
        return cls(
            weights=count.fp32_bytes,
            gradients=count.fp32_bytes,
            optimizer=OPTIMIZER_NUMBERS[params.optimizer.kind](count) * _FP32_BYTES,
            activations=round(elements * _PER_ELEMENT[precision.name] + logits * _FP32_BYTES),
        )


def device_bytes() -> int:
    """The GPU's own memory where one would train, whatever the container allows; else what this process may use."""
    if torch.cuda.is_available():
        return int(torch.cuda.mem_get_info()[1])
    return available_bytes()
