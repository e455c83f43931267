"""Precision of a training: the requested one, if the processor is fast at it."""

import contextlib
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

import torch

from clozeline.errors import ParamsError

Requested = Literal["auto", "fp32", "bf16", "fp16"]
Name = Literal["fp32", "bf16", "fp16"]
_BF16_INSTRUCTIONS = ("avx512_bf16", "amx_bf16", "bf16")
"""Capabilities of x86 (Intel, AMD) and of ARM, under the names of torch.cpu.get_capabilities."""
_DTYPES = MappingProxyType({"bf16": torch.bfloat16, "fp16": torch.float16})


@dataclass(frozen=True)
class Precision:
    """Precision of one training run. Weights, gradients and the optimizer's state are always fp32."""

    name: Name
    device: torch.device
    scaler: torch.amp.GradScaler
    """Keeps small fp16 gradients from underflowing; does nothing in fp32 and bf16."""

    @classmethod
    def choose(cls, requested: Requested, device: torch.device) -> "Precision":
        """Return the precision for `requested`.

        `auto` is fp32 on a CPU, where a result must not depend on the model of the processor; on a GPU it is bf16 if
        supported, else fp16. fp32 on a GPU lets matrix products round their factors to TF32, for the whole process.

        Raises:
            ParamsError: the processor does not support `requested`, or is so slow at it that it must be a mistake.
        """
        processor = _PROCESSORS.get(device.type, _UNKNOWN)
        name = processor.best() if requested == "auto" else requested
        problem = processor.problem_with(name)
        if problem is not None:
            raise ParamsError(
                f"`precision: {name}` does not suit {device}: expected {problem}", do="set `precision` to auto, or fp32"
            )
        if device.type == "cuda" and name == "fp32":
            torch.set_float32_matmul_precision("high")
        return cls.of(name, device)

    @classmethod
    def of(cls, name: Name, device: torch.device) -> "Precision":
        """Return exactly `name`, whether or not the processor is fast at it."""
        return cls(name, device, torch.amp.GradScaler(device.type, enabled=name == "fp16"))

    def autocast(self) -> AbstractContextManager[None]:
        """Return the context for the forward pass and the loss, but not for the backward pass."""
        if self.name == "fp32":
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, dtype=_DTYPES[self.name])


@dataclass(frozen=True)
class _Processor:
    best: Callable[[], Name]
    problem_with: Callable[[Name], str | None]
    """Returns what is expected instead; None: the precision is supported."""


def _best_of_cuda() -> Name:
    return "bf16" if _cuda_has_bf16() else "fp16"


def _problem_with_cuda(name: Name) -> str | None:
    return "a GPU with bf16 (compute capability 8.0), or fp16" if name == "bf16" and not _cuda_has_bf16() else None


def _problem_with_cpu(name: Name) -> str | None:
    if name == "fp16":
        return "a GPU: on a CPU, fp16 is not worth its loss scaling"
    if name == "bf16" and not _cpu_has_bf16():
        instructions = ", ".join(_BF16_INSTRUCTIONS)
        return f"a CPU with one of {instructions}: without them bf16 is 27 times slower than fp32 (measured)"
    return None


def _cuda_has_bf16() -> bool:
    return bool(torch.cuda.is_bf16_supported(including_emulation=False))


def _cpu_has_bf16() -> bool:
    capabilities = torch.cpu.get_capabilities()
    return any(capabilities.get(instruction) for instruction in _BF16_INSTRUCTIONS)


_PROCESSORS: Mapping[str, _Processor] = MappingProxyType(
    {"cpu": _Processor(lambda: "fp32", _problem_with_cpu), "cuda": _Processor(_best_of_cuda, _problem_with_cuda)}
)
_UNKNOWN = _Processor(lambda: "fp32", lambda name: None if name == "fp32" else "fp32 on this kind of processor")
