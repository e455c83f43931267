"""Warning before a pre-training that may not fit into memory, where the kernel would kill it without a message."""

import logging
from typing import Any

from clozeline.language_modelling.language_model import LanguageModel
from clozeline.params import PretrainParams
from clozeline.planning.memory import TOO_LARGE, StepMemory, device_bytes
from clozeline.planning.plan import target_share
from clozeline.training.hardware import Hardware

_LOG = logging.getLogger(__name__)
_GIB = 2**30


def warn_of_memory(model: LanguageModel, params: PretrainParams, hardware: Hardware[Any]) -> None:
    """Log a warning if a step needs more memory than available, by the estimate of `clozeline plan`.

    Training in several processes is not checked, because the estimate is for a single one.
    """
    if hardware.processes.world_size > 1:
        return
    needed_bytes = StepMemory.of(model, params, hardware.precision, target_share(params)).total
    there_bytes = device_bytes()
    if needed_bytes > there_bytes:
        _LOG.warning(
            "a step needs about %.2f GiB, but only %.2f GiB are available. %s",
            needed_bytes / _GIB,
            there_bytes / _GIB,
            TOO_LARGE,
        )
