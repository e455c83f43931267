"""Out-of-memory errors: recognized among all errors, and explained with the settings that need less memory.

A GPU has its own error for it. On a CPU torch raises a plain RuntimeError; numpy and Python raise a MemoryError.
"""

import contextlib
import logging
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from clozeline.params import FinetuneParams, PretrainParams

_LOG = logging.getLogger(__name__)

_OF_ONEDNN = r"could not create a primitive$"
_WORDS = re.compile(
    rf"can't allocate memory|std::bad_alloc|{_OF_ONEDNN}|CUDA error: out of memory|CUBLAS_STATUS_ALLOC_FAILED",
    re.MULTILINE,
)
"""Messages of a RuntimeError: from torch's CPU allocator, from C++ around it, from CUDA below torch's GPU allocator,
and from oneDNN, whose kernels need memory of their own (its message is longer where a kernel does not exist).
"""
_AMOUNT = re.compile(r"allocate ([\d.]+) (bytes|[KMGTPE]iB)")


@dataclass
class Shortage:
    """Whether memory ran out."""

    requested: str | None = None
    """Amount that was requested, in words; None: memory did not run out."""


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


@dataclass(frozen=True)
class _Remedy:
    """A change of params that reduces the memory for a row or for the optimizer's state."""

    is_open: Callable[[Any], bool]
    """Whether these params still allow the change."""
    text: str


def _always(params: object) -> bool:
    return True


_OF_PRETRAINING = (
    _Remedy(lambda params: not params.gradient_checkpointing, "set `gradient_checkpointing: true`"),
    _Remedy(_always, "lower `max_length`"),
    _Remedy(lambda params: params.start is None, "make `model` smaller"),
    _Remedy(lambda params: params.start is not None, "name a smaller model in `start`"),
)
_OF_FINE_TUNING = (
    _Remedy(lambda params: getattr(params, "train_length", None) is not None, "lower `train_length`"),
    _Remedy(lambda params: getattr(params, "train_length", None) is None, "lower `max_length`"),
    _Remedy(
        lambda params: params.lora is None and params.frozen_layers is None,
        "train fewer weights with `frozen_layers` or `lora`",
    ),
    _Remedy(_always, "use a smaller encoder"),
)
_REMEDIES: Sequence[tuple[type[PretrainParams | FinetuneParams], Sequence[_Remedy]]] = (
    (PretrainParams, _OF_PRETRAINING),
    (FinetuneParams, _OF_FINE_TUNING),
)


def remedies(params: PretrainParams | FinetuneParams) -> str:
    """Return what to change in the section `params` if even parts of one row each do not fit into memory.

    A smaller batch or smaller parts would not help: no part is smaller than one row.
    """
    table = next(table for section, table in _REMEDIES if isinstance(params, section))
    *others, last = [remedy.text for remedy in table if remedy.is_open(params)]
    return f"{', '.join(others)}, or {last}"
