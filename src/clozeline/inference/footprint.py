"""What a graph takes of this machine while it is open: memory and time, of a process that does nothing else."""

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
"""Of a batch, as long as the one text."""
_ENOUGH_SECONDS = 0.5
_STATUS = Path("/proc/self/status")


@dataclass(frozen=True)
class Feed:
    """What a graph is asked: texts of tokens drawn at random, one of which is a mask."""

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
    """Of one thread."""

    memory_bytes: int | None
    """Resident, of the whole process once it has answered; None: this system does not tell."""
    text_milliseconds: float
    """The graph alone, one text of `TEXT_TOKENS` tokens: the fastest run, which other work disturbs least."""
    batch_milliseconds: float
    """`BATCH_TEXTS` such texts together; as before."""


def footprint(graph: Path, feed: Feed) -> Footprint:
    """Open the graph in the file `graph` in a new process and ask it."""
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
    """Of this process, as Linux tells; None elsewhere."""
    told = re.search(r"VmRSS:\s+(\d+) kB", _STATUS.read_text()) if _STATUS.is_file() else None
    return 1024 * int(told[1]) if told else None
