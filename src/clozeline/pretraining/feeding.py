"""Endless sequence of pre-training batches, readable from any index, built in this process or by workers.

A batch is a pure function of its index in the sequence, so workers, processes and resuming do not change it.

Word dropout is an augmentation: in some texts of an epoch words are deleted, and nothing takes their place. A deletion
is a function of (seed, epoch, document, position of the word's first token), like a mask.

Replay gives new text to a trained encoder with a share of the text that it was trained on already. Training on new text
alone makes a model forget the old; old text among the new prevents most of it (Robins 1995, "Catastrophic forgetting,
rehearsal and pseudorehearsal"; Scialom et al. 2022, "Fine-tuned language models are continual learners").

Shapes: D documents, R rows of a split; B rows of a batch, N their tokens.
"""

import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from threading import Thread
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader, Dataset

from clozeline.language.draws import Flags, Stream, first_uniform, follows, token_hashes
from clozeline.language.masking import Masker
from clozeline.language.objectives import Objective, Split, TargetBatch
from clozeline.language.order import Turn, cursor, shuffled_plan
from clozeline.language.shards import NUM_BOUNDARY_TOKENS, Rows, RowTokens
from clozeline.language.spelling import Spelling
from clozeline.params.pretraining import WordDropoutParams
from clozeline.records.reading.tokens import REBUILD, documents_path
from clozeline.system import arrays, errors
from clozeline.training import micro_batches, state

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class WordDropout:
    seed: int
    params: WordDropoutParams
    spelling: Spelling

    @classmethod
    def of(cls, params: WordDropoutParams, seed: int, spelling: Spelling) -> Self | None:
        """Return None if nothing is deleted.

        Raises:
            ParamsError: the tokenizer does not mark where words begin.
        """
        if not params.text_share or not params.word_share:
            return None
        if not spelling.marks_words:
            raise errors.ParamsError(
                "`word_dropout`: no token marks where a word begins (##, byte-level BPE, SentencePiece ▁, </w>)",
                do="set `word_dropout.text_share: 0.0`, or take another tokenizer",
            )
        return cls(seed, params, spelling)

    def shorten(self, tokens: RowTokens, epoch: int) -> RowTokens:
        """Return the rows without their deleted words; a row that would lose all words keeps them.

        The tokens that stay keep their positions in the document, which decide their masks.
        """
        is_kept_N = ~self._deleted(tokens, epoch)
        num_rows = len(tokens.length_B)
        is_kept_N |= (np.bincount(tokens.row_N[is_kept_N], minlength=num_rows) == 0)[tokens.row_N]
        row_N = tokens.row_N[is_kept_N]
        num_kept_B = np.bincount(row_N, minlength=num_rows)
        return replace(
            tokens,
            input_ids_N=tokens.input_ids_N[is_kept_N],
            document_N=tokens.document_N[is_kept_N],
            position_N=tokens.position_N[is_kept_N],
            row_N=row_N,
            place_N=np.arange(len(row_N)) - np.repeat(np.cumsum(num_kept_B) - num_kept_B, num_kept_B),
            length_B=num_kept_B + NUM_BOUNDARY_TOKENS,
        )

    def _deleted(self, tokens: RowTokens, epoch: int) -> Flags:
        document_N, position_N = tokens.document_N, tokens.position_N
        continues_N = self.spelling.continues_word(tokens.input_ids_N, follows(tokens.row_N, position_N))
        first_N = np.maximum.accumulate(np.where(continues_N, 0, np.arange(len(continues_N))))
        of_text_N = token_hashes(self.seed, epoch, Stream.TEXT_DROPOUT, document_N, np.zeros_like(position_N))
        of_word_N = token_hashes(self.seed, epoch, Stream.WORD_DROPOUT, document_N, position_N[first_N])
        loses_words_N = first_uniform(of_text_N) < self.params.text_share
        return loses_words_N & (first_uniform(of_word_N) < self.params.word_share)


@dataclass(frozen=True)
class Feed(Dataset[state.Batch[TargetBatch]]):
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

    def batches_from(self, epoch: int, index: int) -> Iterator[state.Batch[TargetBatch]]:
        """Return an endless iterator of batches. Starting late costs no extra time."""
        turns = self._turns_from(epoch, index)
        if self.num_workers == 0:
            return map(self.batch, turns)
        # A separate generator: by default the loader seeds its workers from the global one.
        loader = DataLoader(
            self,
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

    def __getitem__(self, turn: Turn) -> state.Batch[TargetBatch]:
        return self.batch(turn)

    def batch(self, turn: Turn) -> state.Batch[TargetBatch]:
        """Make the whole batch, so that all its targets are counted, then take this process's rows."""
        tokens = self.split.read(turn.rows_B)
        if self.word_dropout is not None:
            tokens = self.word_dropout.shorten(tokens, turn.epoch)
        whole = self.objective.training_batch(self.split, self.masker, tokens, turn.epoch, self.progress(turn))
        own, rows_short = micro_batches.share_of(whole, self.rank, self.world_size)
        return state.Batch(
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


def _as_it_is(batch: Any) -> Any:
    return batch


@dataclass(frozen=True)
class Replay:
    """The training split with the old text left out that is not replayed."""

    split: Split
    num_new_rows: int
    num_old_rows: int  # rows of old text that are kept

    @classmethod
    def of(cls, split: Split, tokens: Path, start: Path, fraction: float | None, seed: int) -> Self:
        """Keep all new documents, and old ones until they have `fraction` of the rows; null keeps all of them.

        A document is old if the model in the folder `start` was trained on it. Old documents are taken in the order of
        a hash of (seed, key), so the same ones in every epoch, process and restart, wherever they lie. Without new text
        all are kept.

        Raises:
            ArtifactError: the keys of the documents are missing.
        """
        key_D = _keys(tokens)
        is_old_D = np.isin(key_D, _keys(start))
        if len(is_old_D) != split.shards.num_documents:
            raise _missing(documents_path(tokens, "train"), f"{len(is_old_D):,} keys")
        rows_D = np.bincount(split.rows.document_R, minlength=len(is_old_D))
        num_new, num_old = int(rows_D[~is_old_D].sum()), int(rows_D[is_old_D].sum())
        if fraction is not None and num_new:
            wanted = round(num_new * fraction / (1 - fraction))
            is_kept_D = ~is_old_D | _first(is_old_D, key_D, rows_D, wanted, seed)
            split = replace(split, rows=_of_documents(split.rows, is_kept_D))
            num_old = len(split.rows) - num_new
        share = num_old / max(num_new + num_old, 1)
        _LOG.info("%s rows of new text, %s of old text (%.0f %%)", f"{num_new:,}", f"{num_old:,}", 100 * share)
        return cls(split, num_new, num_old)


def _first(
    is_old_D: NDArray[np.bool_], key_D: NDArray[np.uint64], rows_D: NDArray[np.int64], wanted: int, seed: int
) -> NDArray[np.bool_]:
    """Return which old documents come first in the order of their hashes, until they have `wanted` rows."""
    old = np.flatnonzero(is_old_D)
    hashes = token_hashes(seed, 0, Stream.REPLAY, key_D[old].view(np.int64), np.zeros(1, np.int64))
    order = old[np.argsort(hashes, kind="stable")]
    before = np.cumsum(rows_D[order]) - rows_D[order]
    is_first_D = np.zeros(len(is_old_D), dtype=bool)
    is_first_D[order[before < wanted]] = True
    return is_first_D


def _of_documents(rows: Rows, is_kept_D: NDArray[np.bool_]) -> Rows:
    def kept(values_R: NDArray[np.int64]) -> NDArray[np.int64]:
        parts = (values_R[chunk][is_kept_D[rows.document_R[chunk]]] for chunk in arrays.chunks(len(rows)))
        return arrays.DiskArrays().joined(parts, np.int64)

    return Rows(kept(rows.document_R), kept(rows.start_R), kept(rows.length_R))


def _keys(folder: Path) -> NDArray[np.uint64]:
    path = documents_path(folder, "train")
    try:
        keys: NDArray[np.uint64] = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise _missing(path, str(error)) from error
    return keys


def _missing(path: Path, given: str) -> errors.ArtifactError:
    return errors.ArtifactError(
        f"{path} does not tell which documents are old: expected a key for each document, got {given}", do=REBUILD
    )
