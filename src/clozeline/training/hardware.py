"""Where and in which numbers one training computes."""

from dataclasses import dataclass
from typing import Any, Generic

import torch

from clozeline.training.distribution import Processes
from clozeline.training.micro_batches import MicroBatches
from clozeline.training.precision import Precision
from clozeline.training.state import Inputs


@dataclass(frozen=True)
class Hardware(Generic[Inputs]):
    """Devices, numbers, and how much of a batch is in memory at once."""

    processes: Processes
    precision: Precision
    micro_batches: MicroBatches[Any]

    @classmethod
    def plain(cls) -> "Hardware[Any]":
        """One process on the CPU, fp32, batches whole."""
        device = torch.device("cpu")
        return cls(Processes.alone(), Precision.of("fp32", device), MicroBatches(None, device))
