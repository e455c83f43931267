"""Hardware of one training run."""

from dataclasses import dataclass
from typing import Any, Generic

import torch

from clozeline.training.distribution import Processes
from clozeline.training.micro_batches import MicroBatches
from clozeline.training.precision import Precision
from clozeline.training.state import Inputs


@dataclass(frozen=True)
class Hardware(Generic[Inputs]):
    """Processes with their devices, precision, and the part of a batch that is in memory at once."""

    processes: Processes
    precision: Precision
    micro_batches: MicroBatches[Any]

    @classmethod
    def plain(cls) -> "Hardware[Any]":
        """Return one process on the CPU, in fp32, with whole batches."""
        device = torch.device("cpu")
        return cls(Processes.alone(), Precision.of("fp32", device), MicroBatches(None, device))
