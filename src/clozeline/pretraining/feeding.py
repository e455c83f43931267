"""Endless sequence of pre-training batches, readable from any index, built in this process or by workers.

A batch is a pure function of its index in the sequence, so workers, processes and resuming do not change it.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from threading import Thread
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from clozeline.language_modelling.batches import Split
from clozeline.language_modelling.objectives import Objective, TargetBatch
from clozeline.pretraining.word_dropout import WordDropout
from clozeline.tokens.masking import Masker
from clozeline.tokens.order import Turn, cursor, shuffled_plan
from clozeline.tokens.rows import NUM_BOUNDARY_TOKENS
from clozeline.training.micro_batches import share_of
from clozeline.training.state import Batch


@dataclass(frozen=True)
class Feed:
    """Material of the batches, and the share of their rows that this process gets."""

    objective: Objective
    split: Split
    masker: Masker
    word_dropout: WordDropout | None
    batch_tokens: int
    seed: int
    total_steps: int
    num_workers: int
    rank: int = 0
    world_size: int = 1

    @cached_property
    def batches_per_epoch(self) -> int:
        """Number of batches in the first epoch; other epochs differ by a few."""
        return _num_batches(self.split, self.batch_tokens, self.seed)

    def batches_from(self, epoch: int, index: int) -> Iterator[Batch[TargetBatch]]:
        """Return an endless iterator of batches. Starting late costs no extra time."""
        turns = self._turns_from(epoch, index)
        if self.num_workers == 0:
            return map(self.batch, turns)
        # A separate generator: by default the loader seeds its workers from the global one.
        loader = DataLoader(
            _Turns(self),
            sampler=turns,
            batch_size=None,
            collate_fn=_as_it_is,
            num_workers=self.num_workers,
            generator=torch.Generator(),
        )
        return iter(loader)

    def _turns_from(self, epoch: int, index: int) -> Iterator[Turn]:
        """Yield the turns; text of more than one window is read ahead, in order, while earlier rows are used."""
        shards = self.split.shards
        length_R, blocks = self.split.rows.length_R, self.split.blocks
        for turn in cursor(length_R, self.batch_tokens, self.seed, epoch, index, blocks):
            if turn.blocks_ahead:
                Thread(target=shards.read_ahead, args=[turn.blocks_ahead], name="read-ahead", daemon=True).start()
            yield turn

    def batch(self, turn: Turn) -> Batch[TargetBatch]:
        """Make the whole batch, so that all its targets are counted, then take this process's rows."""
        tokens = self.split.read(turn.rows_B)
        if self.word_dropout is not None:
            tokens = self.word_dropout.shorten(tokens, turn.epoch)
        whole = self.objective.training(self.split, self.masker, tokens, turn.epoch, self.progress(turn))
        own, rows_short = share_of(whole, self.rank, self.world_size)
        return Batch(
            epoch=turn.epoch,
            index=turn.batch,
            inputs=own,
            num_tokens=int(tokens.length_B.sum()),
            num_targets=len(whole.labels_T),
            num_rows_without_target=whole.num_rows_without_target,
            rows_short=rows_short,
        )

    def one_row(self) -> TargetBatch:
        """Return the smallest batch of the kind that the model reads."""
        return self.batch(Turn(0, 0, np.zeros(1, np.int64))).inputs

    def progress(self, turn: Turn) -> float:
        """Return the share of the budget (0-1) used before this batch, a function of its index."""
        return min((turn.epoch * self.batches_per_epoch + turn.batch) / max(self.total_steps, 1), 1.0)


def steps_of(num_tokens: int, split: Split, batch_tokens: int, seed: int) -> int:
    """Return the number of steps that read about `num_tokens` real tokens, by the mean fill of the first epoch."""
    length_R = split.rows.length_R
    num_batches = _num_batches(split, batch_tokens, seed)
    tokens_per_epoch = int(length_R.sum()) + NUM_BOUNDARY_TOKENS * len(length_R)
    return max(-(-num_tokens * num_batches // tokens_per_epoch), 1)


def steps_of_epochs(epochs: float, split: Split, batch_tokens: int, seed: int) -> int:
    """Return the number of steps that read the rows about `epochs` times, by the batches of the first epoch."""
    return max(round(epochs * _num_batches(split, batch_tokens, seed)), 1)


def _num_batches(split: Split, batch_tokens: int, seed: int) -> int:
    """Return the number of batches of the first epoch."""
    return shuffled_plan(split.rows.length_R, batch_tokens, seed, 0, split.blocks).num_batches


class _Turns(Dataset[Batch[TargetBatch]]):
    """Map-style dataset indexed by `Turn` (epoch, batch, rows)."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed

    def __getitem__(self, turn: Turn) -> Batch[TargetBatch]:
        return self._feed.batch(turn)


def _as_it_is(batch: Any) -> Any:
    return batch
