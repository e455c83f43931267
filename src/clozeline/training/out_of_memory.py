"""Memory that ran out: told from every other fault, and told to a person with the settings that need less of it.

A GPU has an error of its own for it. On a CPU torch raises a plain RuntimeError, and numpy and Python a MemoryError.
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
"""Of a RuntimeError: of torch's allocator for CPUs, of C++ around it, of oneDNN, whose kernels need memory of their own
(of one that it does not have, it says more); and of CUDA below torch's allocator for GPUs."""
_AMOUNT = re.compile(r"allocate ([\d.]+) (bytes|[KMGTPE]iB)")


@dataclass
class Shortage:
    """Whether memory ran out."""

    told: str | None = None
    """How much was asked for when it did, in words; None: it did not."""


@contextlib.contextmanager
def noting_shortage() -> Iterator[Shortage]:
    """End the block where memory runs out in it, and say so; any other fault goes on.

    The error is not kept: its frames hold what memory ran out for.
    """
    shortage = Shortage()
    try:
        yield shortage
    except (RuntimeError, MemoryError) as error:
        shortage.told = told_of_memory(error)
        if shortage.told is None:
            raise
        if re.search(_OF_ONEDNN, str(error), re.MULTILINE):
            _go_on_without_onednn()


def _go_on_without_onednn() -> None:
    """Once there was no memory for a kernel, oneDNN 3.12 makes none in that thread any more, however much there is
    (uxlfoundation/oneDNN, pull request 5907): smaller parts alone would not help.
    """
    onednn: Any = torch.backends.mkldnn
    onednn.enabled = False
    _LOG.warning(
        "no memory for a kernel of oneDNN, which has none for this process any more: going on with torch's own; "
        "in bf16 they are many times slower"
    )


def told_of_memory(error: Exception) -> str | None:
    """How much was asked for when memory ran out, in words; None: `error` is another fault."""
    said = str(error)
    if not isinstance(error, torch.OutOfMemoryError | MemoryError) and not _WORDS.search(said):
        return None
    amount = _AMOUNT.search(said)
    if amount is None:
        return f"how much was asked for is not told: {(said or type(error).__name__).splitlines()[0]}"
    number, unit = amount.groups()
    return f"{int(number):,} bytes were asked for" if unit == "bytes" else f"{number} {unit} were asked for"


@dataclass(frozen=True)
class _Remedy:
    """What makes a row, or the optimizer's state, need less memory."""

    is_open: Callable[[Any], bool]
    """Whether these params leave it to be done."""
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
        "train fewer weights by `frozen_layers` or `lora`",
    ),
    _Remedy(_always, "take a smaller encoder"),
)
_REMEDIES: Sequence[tuple[type[PretrainParams | FinetuneParams], Sequence[_Remedy]]] = (
    (PretrainParams, _OF_PRETRAINING),
    (FinetuneParams, _OF_FINE_TUNING),
)


def remedies(params: PretrainParams | FinetuneParams) -> str:
    """What to change in the section that `params` are, where parts of one row each do not fit into memory.

    A smaller batch, and smaller parts of it, are none: of one row there is no smaller part.
    """
    table = next(table for section, table in _REMEDIES if isinstance(params, section))
    *others, last = [remedy.text for remedy in table if remedy.is_open(params)]
    return f"in params.yaml, {', '.join(others)}, or {last}"
