"""Warning before a pre-training that may not fit into memory, where the kernel would kill it without a message."""

import logging

from clozeline.planning.memory import TOO_LARGE, StepMemory, device_bytes
from clozeline.planning.plan import target_share
from clozeline.pretraining.job import Pretraining

_LOG = logging.getLogger(__name__)
_GIB = 2**30


def warn_of_memory(job: Pretraining) -> None:
    """Log a warning if a step needs more memory than available, by the estimate of `clozeline plan`.

    Training in several processes is not checked, because the estimate is for a single one.
    """
    hardware = job.loop.hardware
    if hardware.processes.world_size > 1:
        return
    needed_bytes = StepMemory.of(job.model, job.params, hardware.precision, target_share(job.params)).total
    there_bytes = device_bytes()
    if needed_bytes > there_bytes:
        _LOG.warning(
            "a step needs about %.2f GiB, but only %.2f GiB are available. %s",
            needed_bytes / _GIB,
            there_bytes / _GIB,
            TOO_LARGE,
        )
