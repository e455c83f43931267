"""Training speed of this machine by a few timed steps on synthetic tokens, and memory and time of an open graph.

A graph is measured in a process that does nothing else.

Shapes: B rows, L tokens of a row, T targets.
"""

import re
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from statistics import median_high
from timeit import timeit

import numpy as np
import torch

from clozeline.exporting.graph import size_of
from clozeline.inference.open_model import GraphSession, TextBatch
from clozeline.language.detection import ReplacedTokenPair
from clozeline.language.models import LanguageModel
from clozeline.language.objectives import DetectionBatch, TargetBatch
from clozeline.params.pretraining import PretrainParams
from clozeline.pretraining.job import compiled
from clozeline.pretraining.losses import loss_of
from clozeline.training import micro_batches, optimizers, steps

# Upper limit of a timed pass in FLOPs: a few seconds on a slow core.
_MOST_FLOPS = 2e11
_ENOUGH_SECONDS = 3.0
_MOST_STEPS = 10
TEXT_TOKENS = 32
# Texts in the timed batch; each has `TEXT_TOKENS` tokens.
BATCH_TEXTS = 8
_FOOTPRINT_SECONDS = 0.5
_STATUS = Path("/proc/self/status")


@dataclass(frozen=True)
class Speed:
    seconds_per_token: float  # seconds of the forward and backward pass per token
    seconds_per_update: float  # seconds of the optimizer per step
    batch_tokens: int

    @property
    def tokens_per_second(self) -> float:
        return self.batch_tokens / (self.seconds_per_token * self.batch_tokens + self.seconds_per_update)


def own_device() -> torch.device:
    """Return the device that trains in this process."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def measure(model: LanguageModel, params: PretrainParams, *, target_share: float, flops_per_token: float) -> Speed:
    """Train `model` for a few steps, with the threads, compilation and gradient checkpointing of the real training.

    The model is useless afterwards.

    Raises:
        ParamsError: this processor does not support the precision, or no compiler is installed.
    """
    device = own_device()
    precision = micro_batches.Precision.choose(params.precision, device)
    no_flags_V = np.zeros(model.config.vocab_size, dtype=bool)
    if params.gradient_checkpointing:
        model.gradient_checkpointing_enable()
    loss = compiled(loss_of(model.train(), no_flags_V, params.discriminator_weight).to(device), params.compile)
    optimizer = optimizers.build_optimizer(model, params.optimizer)
    most = min(params.batch_tokens, params.micro_batch_tokens or params.batch_tokens, _MOST_FLOPS / flops_per_token)
    batch = _synthetic(max(int(most) // params.max_length, 1), params.max_length, target_share, model).to(device)

    def forward_and_backward() -> None:
        with precision.autocast():
            loss_sum = loss(batch).loss_sum
        (loss_sum / len(batch.labels_T)).backward()

    def update() -> None:
        steps.clip_gradients(model, params.optimizer)
        optimizer.step()
        optimizer.zero_grad()

    forward_and_backward()
    update()
    passes, updates = _timed(forward_and_backward, update, device)
    return Speed(passes / batch.num_slots, updates, params.batch_tokens)


def _synthetic(num_rows: int, length: int, target_share: float, model: LanguageModel) -> TargetBatch:
    random = torch.Generator().manual_seed(0)
    vocab_size = model.config.vocab_size
    num_targets = max(round(target_share * num_rows * length), 1)
    slot_T = torch.randperm(num_rows * length, generator=random)[:num_targets].sort().values
    batch = TargetBatch(
        input_ids_BL=torch.randint(vocab_size, (num_rows, length), generator=random),
        attention_mask_BL=None,
        slot_T=slot_T,
        labels_T=torch.randint(vocab_size, (num_targets,), generator=random),
    )
    if not isinstance(model, ReplacedTokenPair):
        return batch
    return DetectionBatch(
        **vars(batch),
        text_ids_BL=batch.input_ids_BL,
        uniform_T=torch.rand(num_targets, generator=random, dtype=torch.float64),
        targets_per_token=torch.tensor(target_share),
    )


def _timed(first: Callable[[], None], second: Callable[[], None], device: torch.device) -> tuple[float, float]:
    """Return the median seconds of each action over several turns."""
    seconds: tuple[list[float], list[float]] = ([], [])
    while sum(map(sum, seconds)) < _ENOUGH_SECONDS and len(seconds[0]) < _MOST_STEPS:
        for action, taken in zip((first, second), seconds, strict=True):
            started = time.perf_counter()
            action()
            if device.type == "cuda":
                torch.cuda.synchronize()
            taken.append(time.perf_counter() - started)
    return median_high(seconds[0]), median_high(seconds[1])


@dataclass(frozen=True)
class GraphFeed:
    """Inputs for a graph: texts of random tokens, with one mask token in each if there is one."""

    input_names: tuple[str, ...]
    vocab_size: int
    mask_id: int | None
    outputs: tuple[str, ...]

    def batch(self, num_texts: int) -> TextBatch:
        shape = (num_texts, TEXT_TOKENS)
        input_ids_BL = np.random.default_rng(0).integers(self.vocab_size, size=shape)
        if self.mask_id is not None:
            input_ids_BL[input_ids_BL == self.mask_id] = 0
            input_ids_BL[:, TEXT_TOKENS // 2] = self.mask_id
        return TextBatch(tuple(range(num_texts)), input_ids_BL, np.ones(shape, dtype=np.int64))


@dataclass(frozen=True)
class Footprint:
    """Size of a graph on disk, and its memory and latency on one thread."""

    file_bytes: int
    # Resident memory of the whole process after it has answered; None if the system does not report it.
    memory_bytes: int | None
    # Time of the graph alone for one text of `TEXT_TOKENS` tokens: the fastest run, the least disturbed one.
    text_milliseconds: float
    batch_milliseconds: float  # time for a batch of `BATCH_TEXTS` such texts, measured the same way


def footprint(graph: Path, feed: GraphFeed) -> Footprint:
    """Open the file `graph` in a new process and measure it."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
        return process.submit(_footprint, graph, feed).result()


def _footprint(graph: Path, feed: GraphFeed) -> Footprint:
    session = GraphSession(graph, input_names=feed.input_names, num_threads=1)

    def milliseconds(num_texts: int) -> float:
        batch, seconds = feed.batch(num_texts), [0.0]
        session.run(batch, *feed.outputs)
        while sum(seconds) < _FOOTPRINT_SECONDS:
            seconds.append(timeit(lambda: session.run(batch, *feed.outputs), number=1))
        return 1000 * min(seconds[1:])

    text, batch = milliseconds(1), milliseconds(BATCH_TEXTS)
    return Footprint(size_of(graph), resident_bytes(), text, batch)


def resident_bytes() -> int | None:
    """Return the resident memory of this process in bytes; None on systems other than Linux."""
    found = re.search(r"VmRSS:\s+(\d+) kB", _STATUS.read_text()) if _STATUS.is_file() else None
    return 1024 * int(found[1]) if found else None
