"""Replay: text that is new to the trained encoder, with a share of the text that it was trained on already.

Training on new text alone makes a model forget the old; old text among the new prevents most of it (Robins 1995,
"Catastrophic forgetting, rehearsal and pseudorehearsal"; Scialom et al. 2022, "Fine-tuned language models are continual
learners").

Shapes: D documents, R rows of a split.
"""

import logging
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

from clozeline.errors import ArtifactError
from clozeline.language_modelling.batches import Split
from clozeline.storage.arrays import DiskArrays, chunks
from clozeline.tokens.draws import Stream, token_hashes
from clozeline.tokens.info import REBUILD, documents_path
from clozeline.tokens.rows import Rows

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Replay:
    """The training split with the old text left out that is not replayed."""

    split: Split
    num_new_rows: int
    num_old_rows: int
    """Rows of old text that are kept."""

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
        parts = (values_R[chunk][is_kept_D[rows.document_R[chunk]]] for chunk in chunks(len(rows)))
        return DiskArrays().joined(parts, np.int64)

    return Rows(kept(rows.document_R), kept(rows.start_R), kept(rows.length_R))


def _keys(folder: Path) -> NDArray[np.uint64]:
    path = documents_path(folder, "train")
    try:
        keys: NDArray[np.uint64] = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise _missing(path, str(error)) from error
    return keys


def _missing(path: Path, given: str) -> ArtifactError:
    return ArtifactError(
        f"{path} does not tell which documents are old: expected a key for each document, got {given}", do=REBUILD
    )
