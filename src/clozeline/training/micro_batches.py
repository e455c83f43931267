"""How a training uses its hardware: device, precision, and micro-batches that fit into memory.

The gradients of the micro-batches of a batch add up to that of the whole. The precision is the requested one, if the
processor is fast at it. An out-of-memory error is recognized among all errors, and explained with the settings that
need less memory: a GPU has its own error for it; on a CPU torch raises a plain RuntimeError; numpy and Python raise a
MemoryError.
"""

import contextlib
import itertools
import logging
import re
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Generic, Literal, Protocol, Self, TypeVar

import torch

from clozeline.params import pretraining, tasks
from clozeline.params.schema import Requested
from clozeline.system.errors import ParamsError
from clozeline.training import distribution, state

_LOG = logging.getLogger(__name__)

_OF_ONEDNN = r"could not create a primitive$"
# Messages of a RuntimeError: from torch's CPU allocator, from C++ around it, from CUDA below torch's GPU allocator, and
# from oneDNN, whose kernels need memory of their own (its message is longer where a kernel does not exist).
_WORDS = re.compile(
    rf"can't allocate memory|std::bad_alloc|{_OF_ONEDNN}|CUDA error: out of memory|CUBLAS_STATUS_ALLOC_FAILED",
    re.MULTILINE,
)
_AMOUNT = re.compile(r"allocate ([\d.]+) (bytes|[KMGTPE]iB)")

Name = Literal["fp32", "bf16", "fp16"]
# Capabilities of x86 (Intel, AMD) and of ARM, under the names of torch.cpu.get_capabilities.
_BF16_INSTRUCTIONS = ("avx512_bf16", "amx_bf16", "bf16")
_DTYPES = MappingProxyType({"bf16": torch.bfloat16, "fp16": torch.float16})


@dataclass
class Shortage:
    """Whether memory ran out."""

    requested: str | None = None  # amount that was requested, in words; None: memory did not run out


@contextlib.contextmanager
def noting_shortage() -> Iterator[Shortage]:
    """End the block if memory runs out in it, and record that. Any other error propagates.

    The error is not kept, because its frames hold the memory.
    """
    shortage = Shortage()
    try:
        yield shortage
    except (RuntimeError, MemoryError) as error:
        shortage.requested = requested_memory(error)
        if shortage.requested is None:
            raise
        if re.search(_OF_ONEDNN, str(error), re.MULTILINE):
            _turn_onednn_off()


def _turn_onednn_off() -> None:
    """Turn oneDNN off. Once memory for a kernel was missing, oneDNN 3.12 creates no kernel in that thread any more,
    even with enough memory (uxlfoundation/oneDNN, pull request 5907): smaller parts alone would not help.
    """
    onednn: Any = torch.backends.mkldnn
    onednn.enabled = False
    _LOG.warning(
        "oneDNN had no memory for a kernel and creates no more in this process: continuing with torch's own kernels, "
        "which are many times slower in bf16"
    )


def requested_memory(error: Exception) -> str | None:
    """Return the amount that was requested when memory ran out, in words; None: `error` is another fault."""
    message = str(error)
    if not isinstance(error, torch.OutOfMemoryError | MemoryError) and not _WORDS.search(message):
        return None
    amount = _AMOUNT.search(message)
    if amount is None:
        return f"the requested amount is unknown: {(message or type(error).__name__).splitlines()[0]}"
    number, unit = amount.groups()
    return f"{int(number):,} bytes were requested" if unit == "bytes" else f"{number} {unit} were requested"


def remedies(params: pretraining.PretrainParams | tasks.FinetuneParams) -> str:
    """Return what to change in the section `params` if even parts of one row each do not fit into memory.

    A smaller batch or smaller parts would not help: no part is smaller than one row.
    """
    if isinstance(params, pretraining.PretrainParams):
        is_open = {
            "set `gradient_checkpointing: true`": not params.gradient_checkpointing,
            "lower `max_length`": True,
            "make `model` smaller": params.start is None,
            "name a smaller model in `start`": params.start is not None,
        }
    else:
        has_train_length = getattr(params, "train_length", None) is not None
        is_open = {
            "lower `train_length`": has_train_length,
            "lower `max_length`": not has_train_length,
            "train fewer weights with `frozen_layers` or `lora`": params.lora is None and params.frozen_layers is None,
            "use a smaller encoder": True,
        }
    *others, last = [change for change, may_help in is_open.items() if may_help]
    return f"{', '.join(others)}, or {last}"


class Divisible(Protocol):
    """Rows that can be split."""

    @property
    def num_rows(self) -> int: ...

    @property
    def num_slots(self) -> int:
        """Number of tokens, padding included, which determines the memory."""

    def rows(self, first: int, last: int) -> Self: ...

    def silent(self) -> Self:
        """Return the same rows without targets."""

    def to(self, device: torch.device) -> Self: ...


Rows = TypeVar("Rows", bound=Divisible)


def share_of(batch: Rows, rank: int, world_size: int) -> tuple[Rows, int]:
    """Return the rows of process `rank`, and by how many they are fewer than the largest share.

    If there are fewer rows than processes, a process gets one row without targets, because all processes must take part
    in summing the gradients.
    """
    if world_size == 1:
        return batch, 0
    first, last = (batch.num_rows * (rank + place) // world_size for place in (0, 1))
    own = batch.rows(first, last) if first < last else batch.rows(0, 1).silent()
    return own, -(-batch.num_rows // world_size) - own.num_rows


@dataclass(eq=False)
class MicroBatches(Generic[Rows]):
    """Cuts batches into parts of a limited number of slots, and moves them to the device."""

    most_slots: int | None  # limit of a part; None: no limit
    device: torch.device
    longest_row: int = 1  # tokens of the longest row, which any limit in params.yaml has to hold
    remedies: str = "use a smaller model, or shorter rows"  # what helps if one row does not fit

    @classmethod
    def of(cls, params: pretraining.PretrainParams | tasks.FinetuneParams, device: torch.device) -> Self:
        return cls(params.micro_batch_tokens, device, params.max_length, remedies(params))

    def parts(self, batch: Rows, rows_short: int = 0) -> list[Rows]:
        """Return parts with nearly equal numbers of rows, at least one row each.

        `rows_short`: number of rows by which this share is smaller than the largest. Every process makes as many parts
        as the largest share needs, because all of them gather a sharded model for each part. With fewer rows than
        parts, some parts have no targets.
        """
        return [part.to(self.device) for part in self._cut(batch, rows_short)]

    def _cut(self, batch: Rows, rows_short: int = 0) -> list[Rows]:
        if self.most_slots is None:
            return [batch]
        most_rows = batch.num_rows + rows_short
        num_slots = batch.num_slots * most_rows // batch.num_rows
        if num_slots <= self.most_slots:
            return [batch]
        num_parts = min(-(-num_slots // self.most_slots), most_rows)
        bounds = [batch.num_rows * part // num_parts for part in range(num_parts + 1)]
        spans = itertools.pairwise(bounds)
        return [batch.rows(first, last) if first < last else batch.rows(0, 1).silent() for first, last in spans]

    def half(self, batch: Rows, rows_short: int = 0) -> int | None:
        """Return half the tokens of the largest part; None if that part is one row. `rows_short`: as in `parts`."""
        largest_rows = -(-(batch.num_rows + rows_short) // len(self._cut(batch, rows_short)))
        return None if largest_rows == 1 else largest_rows * (batch.num_slots // batch.num_rows) // 2

    def bound_to_set(self, batch: Rows, rows_short: int = 0) -> int | None:
        """Return a `micro_batch_tokens` that reduces the memory for such a batch; None if no allowed value does.

        `rows_short`: as in `parts`.
        """
        half = self.half(batch, rows_short)
        if half is None or self.longest_row >= 2 * half:
            return None
        return max(half, self.longest_row)

    def halve(self, batch: Rows, rows_short: int = 0) -> bool:
        """Halve the parts from now on, after memory ran out. Return False if a part was one row already.

        Processes that train together all halve theirs to the same size.
        """
        half = self.half(batch, rows_short)
        if half is None:
            return False
        self.most_slots = half
        _LOG.warning(
            "out of memory with %d tokens at once: continuing with parts of %d, which together give the result of the"
            " whole batch. Set `micro_batch_tokens: %d` to start with such parts",
            2 * half,
            half,
            max(half, self.longest_row),
        )
        return True


@dataclass(frozen=True)
class Precision:
    """Precision of one training run. Weights, gradients and the optimizer's state are always fp32."""

    name: Name
    device: torch.device
    scaler: torch.amp.GradScaler  # keeps small fp16 gradients from underflowing; does nothing in fp32 and bf16

    @classmethod
    def choose(cls, requested: Requested, device: torch.device) -> "Precision":
        """Return the precision for `requested`.

        `auto` is fp32 on a CPU, where a result must not depend on the model of the processor; on a GPU it is bf16 if
        supported, else fp16. fp32 on a GPU lets matrix products round their factors to TF32, for the whole process.

        Raises:
            ParamsError: the processor does not support `requested`, or is so slow at it that it must be a mistake.
        """
        name = _best_on(device.type) if requested == "auto" else requested
        expected = _expected_on(device.type, name)
        if expected is not None:
            raise ParamsError(
                f"`precision: {name}` does not suit {device}: expected {expected}",
                do="set `precision` to auto, or fp32",
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


def _best_on(device_type: str) -> Name:
    if device_type != "cuda":
        return "fp32"
    return "bf16" if _cuda_has_bf16() else "fp16"


def _expected_on(device_type: str, name: Name) -> str | None:
    """Return what is expected instead of a precision; None: the device supports it."""
    instructions = ", ".join(_BF16_INSTRUCTIONS)
    match device_type, name:
        case "cpu", "fp16":
            return "a GPU: on a CPU, fp16 is not worth its loss scaling"
        case "cpu", "bf16" if not _cpu_has_bf16():
            return f"a CPU with one of {instructions}: without them bf16 is 27 times slower than fp32 (measured)"
        case "cuda", "bf16" if not _cuda_has_bf16():
            return "a GPU with bf16 (compute capability 8.0), or fp16"
        case ("cpu" | "cuda", _) | (_, "fp32"):
            return None
    return "fp32 on this kind of processor"


def _cuda_has_bf16() -> bool:
    return bool(torch.cuda.is_bf16_supported(including_emulation=False))


def _cpu_has_bf16() -> bool:
    capabilities = torch.cpu.get_capabilities()
    return any(capabilities.get(instruction) for instruction in _BF16_INSTRUCTIONS)


@dataclass(frozen=True)
class Hardware(Generic[state.Inputs]):
    """Processes with their devices, precision, and the part of a batch that is in memory at once."""

    processes: distribution.Processes
    precision: Precision
    micro_batches: MicroBatches[Any]
