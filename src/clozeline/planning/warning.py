"""A pre-training that will hardly fit into memory: told before it begins, for the kernel kills it without a word."""

import logging
from typing import Any

from clozeline.encoder.language_model import LanguageModel
from clozeline.params import PretrainParams
from clozeline.planning.memory import TOO_LARGE, StepMemory, device_bytes
from clozeline.planning.plan import target_share
from clozeline.training.hardware import Hardware

_LOG = logging.getLogger(__name__)
_GIB = 2**30


def warn_of_memory(model: LanguageModel, params: PretrainParams, hardware: Hardware[Any]) -> None:
    """Say so, if a step needs more than there is by the estimate of `clozeline plan`: that of a process alone."""
    if hardware.processes.world_size > 1:
        return
    needed_bytes = StepMemory.of(model, params, hardware.precision, target_share(params)).total
    there_bytes = device_bytes()
    if needed_bytes > there_bytes:
        _LOG.warning(
            "a step needs about %.2f GiB, and %.2f GiB are there. %s",
            needed_bytes / _GIB,
            there_bytes / _GIB,
            TOO_LARGE,
        )
