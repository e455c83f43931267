"""Cost of raw text → clean text → tokens, in proportion to the measured run."""

import math
from dataclasses import dataclass

from on_paper.figures import CLUSTER, CORPUS, PRICES

SIZES = {"10 GB": 1e10, "1 TB": 1e12, "10 TB": 1e13}
"""Bytes of raw text."""
_MEASURED_BYTES = 79e6
_HOUR = 3600.0


@dataclass(frozen=True)
class CorpusCost:
    raw_bytes: float

    @property
    def texts(self) -> float:
        return self.raw_bytes / CORPUS.text_bytes.value

    @property
    def tokens(self) -> float:
        return self.raw_bytes / CORPUS.bytes_per_token.value

    @property
    def core_seconds(self) -> float:
        return self.raw_bytes / 1e6 * CORPUS.core_seconds_per_mb.value

    def seconds(self, num_cores: int) -> float:
        """Return the time on one machine whose cores are all busy, as partitions make possible."""
        return self.core_seconds / num_cores

    def seconds_today(self, num_cores: int) -> float:
        """Return the time on one machine today, where the main process does its share alone (Amdahl 1967)."""
        alone = CORPUS.alone_share.value
        return self.core_seconds * (alone + (1 - alone) / num_cores)

    def seconds_on(self, num_machines: int, cores_each: int) -> float:
        """Return the time on equal machines that exchange what does not stay at home over their networks."""
        moved = self.exchanged_bytes * (1 - 1 / num_machines) / num_machines
        network = 2 * moved / (CLUSTER.machine_gb_per_s.value * 1e9)  # to the shared storage, and back
        return self.seconds(num_machines * cores_each) + network + CLUSTER.start_seconds.value * (num_machines > 1)

    @property
    def memory_bytes(self) -> float:
        """Memory on two cores: the measured growth for each factor of ten since the measured text."""
        tens = math.log10(self.raw_bytes / _MEASURED_BYTES)
        return CORPUS.memory_gb.value * 1e9 * CORPUS.memory_growth.value**tens

    @property
    def peak_disk_bytes(self) -> float:
        return self.raw_bytes * CORPUS.peak_disk.value

    @property
    def lasting_bytes(self) -> float:
        return self.raw_bytes * CORPUS.lasting_disk.value

    @property
    def exchanged_bytes(self) -> float:
        return self.raw_bytes * CORPUS.exchanged.value

    @property
    def core_dollars(self) -> float:
        return self.core_seconds / _HOUR * PRICES.core_hour.value

    @property
    def disk_dollars_a_month(self) -> float:
        return self.peak_disk_bytes / 1e12 * PRICES.disk_tb_month.value

    @property
    def num_partitions(self) -> int:
        return max(round(self.raw_bytes / 1e9 / CLUSTER.partition_gb.value), 1)

    @property
    def num_pieces(self) -> int:
        """Reads of the exchange: each partition reads its piece of the output of every earlier task."""
        return self.num_partitions**2

    @property
    def piece_seconds(self) -> float:
        """Time of those reads if they go to one prefix of an object store."""
        return self.num_pieces / CLUSTER.requests_per_s.value


def bytes_with_slow_pieces(num_cores: int) -> float:
    """Return the raw bytes from which reading the pieces takes longer than all other work on `num_cores`.

    The pieces grow with the square of the text, the work with the text.
    """
    one = CorpusCost(1e12)
    return one.raw_bytes * one.seconds(num_cores) / one.piece_seconds


def bytes_worth_a_second_machine(saved_seconds: float, cores_each: int, mb_per_s: float | None = None) -> float:
    """Return the raw bytes from which two machines of `cores_each` save `saved_seconds` over one of them.

    `mb_per_s`: speed of two cores, if it is not the measured one.
    """
    byte = CorpusCost(1.0)
    one = byte.seconds(cores_each) if mb_per_s is None else 2 / (mb_per_s * 1e6 * cores_each)
    network = byte.seconds_on(2, cores_each) - byte.seconds(2 * cores_each) - CLUSTER.start_seconds.value
    return (saved_seconds + CLUSTER.start_seconds.value) / (one / 2 - network)


def bytes_with_texts_beyond_32_bits() -> float:
    """Return the raw bytes from which the numbers of texts need more than the 32 bits that a pair has for each."""
    return 2**32 * CORPUS.text_bytes.value
