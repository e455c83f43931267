"""Sketches of texts as columns beside them, so that they are sorted, written and kept with their texts."""

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from clozeline.artifacts.preprocess.clean_text import TEXT
from clozeline.words.shingles import Banding, ShingleSets, shingle_sets

_SHINGLES, _BANDS = "shingles", "bands"
_SKETCH_BYTES = 400_000


def with_sketches(texts: pa.RecordBatch, banding: Banding) -> pa.RecordBatch:
    """Return `texts` with the columns of their sketches."""
    sets = [shingle_sets(part, banding) for part in _parts(texts.column(TEXT))]
    hashes = [np.zeros(0, np.uint32), *(some.hashes_S for some in sets)]
    counts = [np.zeros(1, np.int64), *(some.counts_N for some in sets)]
    bands = [np.zeros(0, np.uint64), *(some.bands_NB.ravel() for some in sets)]
    offsets = pa.array(np.cumsum(np.concatenate(counts)), pa.int32())
    band_offsets = pa.array(np.arange(len(texts) + 1) * banding.num_bands, pa.int32())
    shingle_column = pa.ListArray.from_arrays(offsets, pa.array(np.concatenate(hashes)))
    band_column = pa.ListArray.from_arrays(band_offsets, pa.array(np.concatenate(bands)))
    return texts.append_column(_SHINGLES, shingle_column).append_column(_BANDS, band_column)


def without_sketches(texts: pa.Table) -> pa.Table:
    return texts.drop_columns([_SHINGLES, _BANDS])


def sketches_of(texts: pa.Table) -> ShingleSets:
    """Return the sketches of `texts` from their columns."""
    shingles, bands = (pa.concat_arrays(texts[name].chunks) for name in (_SHINGLES, _BANDS))
    return ShingleSets(
        hashes_S=shingles.flatten().to_numpy(),
        counts_N=pc.list_value_length(shingles).to_numpy().astype(np.int64),
        bands_NB=bands.flatten().to_numpy().reshape(len(texts), -1),
    )


def _parts(column: Any) -> Iterator[Any]:
    """Cut a column into parts of about `_SKETCH_BYTES`."""
    number_N = np.cumsum(pc.binary_length(column).to_numpy()) // _SKETCH_BYTES
    bounds = [0, *(np.flatnonzero(np.diff(number_N)) + 1).tolist(), len(column)]
    return (column.slice(start, end - start) for start, end in pairwise(bounds) if end > start)
