"""Memory and time of an open graph on this machine, measured in a process that does nothing else."""

import re
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

import numpy as np

from clozeline.inference.batching import Batch
from clozeline.inference.session import GraphSession

TEXT_TOKENS = 32
BATCH_TEXTS = 8
"""Texts in the timed batch; each has `TEXT_TOKENS` tokens."""
_ENOUGH_SECONDS = 0.5
_STATUS = Path("/proc/self/status")


@dataclass(frozen=True)
class Feed:
    """Inputs for a graph: texts of random tokens, with one mask token in each if there is one."""

    input_names: tuple[str, ...]
    vocab_size: int
    mask_id: int | None
    outputs: tuple[str, ...]

    def batch(self, num_texts: int) -> Batch:
        shape = (num_texts, TEXT_TOKENS)
        input_ids_BL = np.random.default_rng(0).integers(self.vocab_size, size=shape)
        if self.mask_id is not None:
            input_ids_BL[input_ids_BL == self.mask_id] = 0
            input_ids_BL[:, TEXT_TOKENS // 2] = self.mask_id
        return Batch(tuple(range(num_texts)), input_ids_BL, np.ones(shape, dtype=np.int64))


@dataclass(frozen=True)
class Footprint:
    """Memory and latency of a graph on one thread."""

    memory_bytes: int | None
    """Resident memory of the whole process after it has answered; None if the system does not report it."""
    text_milliseconds: float
    """Time of the graph alone for one text of `TEXT_TOKENS` tokens: the fastest run, the least disturbed one."""
    batch_milliseconds: float
    """Time for a batch of `BATCH_TEXTS` such texts, measured the same way."""


def footprint(graph: Path, feed: Feed) -> Footprint:
    """Open the file `graph` in a new process and measure it."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
        return process.submit(_footprint, graph, feed).result()


def _footprint(graph: Path, feed: Feed) -> Footprint:
    session = GraphSession(graph, input_names=feed.input_names, num_threads=1)
    text, batch = (_milliseconds(session, feed, num_texts) for num_texts in (1, BATCH_TEXTS))
    return Footprint(resident_bytes(), text, batch)


def _milliseconds(session: GraphSession, feed: Feed, num_texts: int) -> float:
    batch = feed.batch(num_texts)
    session.run(batch, *feed.outputs)
    seconds: list[float] = []
    while sum(seconds) < _ENOUGH_SECONDS:
        started = time.perf_counter()
        session.run(batch, *feed.outputs)
        seconds.append(time.perf_counter() - started)
    return 1000 * min(seconds)


def resident_bytes() -> int | None:
    """Return the resident memory of this process in bytes; None on systems other than Linux."""
    found = re.search(r"VmRSS:\s+(\d+) kB", _STATUS.read_text()) if _STATUS.is_file() else None
    return 1024 * int(found[1]) if found else None
