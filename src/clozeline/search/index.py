"""Vectors of all entries, made once for each model and text, and searched exactly.

Shapes: E entries, H hidden.
"""

import hashlib
import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from clozeline.atomic import replacing_folder
from clozeline.inference.embedder import Embedder
from clozeline.inference.manifest import FILES
from clozeline.progress import ProgressBar
from clozeline.search.entries import Entry, entries_of, parts_of

_LOG = logging.getLogger(__name__)
_FORMAT = b"1"
_VECTORS = "vectors.npy"
_ENTRIES = "entries.parquet"
_CHUNK_TEXTS = 2048


@dataclass(frozen=True, slots=True)
class Found:
    """The fields of an entry, and how near it is."""

    library: str
    name: str
    summary: str
    score: float
    """Cosine, -1 to 1."""


@dataclass(frozen=True)
class SearchIndex:
    """Entries and their vectors of length 1."""

    entries: Sequence[Entry]
    vector_EH: npt.NDArray[np.float16]

    @classmethod
    def open(cls, model: Embedder, package: Path, clean: Path, work: Path) -> Self:
        """The index of `clean` by the model in `package`; it is made if `work` has none of just these bytes.

        Raises:
            ArtifactError: there is nothing to search in.
        """
        folder = work / "search" / _key(package, clean)
        if not folder.is_dir():
            _LOG.info("reading every docstring of %s once; later searches are answered from %s", clean, folder)
            with replacing_folder(folder) as beside:
                _build(model, clean, beside)
        table = pq.read_table(folder / _ENTRIES)
        columns = (table.column(name).to_pylist() for name in ("library", "name", "summary"))
        return cls([Entry(*row) for row in zip(*columns, strict=True)], np.load(folder / _VECTORS))

    def nearest(self, query_H: npt.NDArray[np.float32], top_k: int, library: str | None = None) -> list[Found]:
        """The `top_k` nearest entries (of one library alone), best first; of equal ones in the order of their names."""
        score_E = self.vector_EH.astype(np.float32) @ query_H
        if library is not None:
            is_its_E = np.array([entry.library == library for entry in self.entries])
            score_E = np.where(is_its_E, score_E, -np.inf)
        best = np.argsort(-score_E, kind="stable")[:top_k]
        return [
            Found(**asdict(self.entries[place]), score=float(score_E[place]))
            for place in best.tolist()
            if np.isfinite(score_E[place])
        ]

    @property
    def libraries(self) -> list[str]:
        return sorted({entry.library for entry in self.entries})


def _key(package: Path, clean: Path) -> str:
    """Of all that the index is made of: the manifest has the hash of each file of the model."""
    digest = hashlib.sha256(_FORMAT + (package / FILES.manifest).read_bytes())
    for file in parts_of(clean):
        with file.open("rb") as content:
            digest.update(hashlib.file_digest(content, "sha256").digest())
    return digest.hexdigest()[:16]


def _build(model: Embedder, clean: Path, folder: Path) -> None:
    entries, texts = zip(*entries_of(clean), strict=True)
    vector_EH = np.empty((len(texts), model.manifest.hidden_size), dtype=np.float16)
    with ProgressBar("index", len(texts)) as bar:
        for start in range(0, len(texts), _CHUNK_TEXTS):
            chunk = texts[start : start + _CHUNK_TEXTS]
            vector_EH[start : start + len(chunk)] = model.embed(chunk, truncate=True)
            bar.advance(len(chunk))
    np.save(folder / _VECTORS, vector_EH)
    pq.write_table(pa.Table.from_pylist([asdict(entry) for entry in entries]), folder / _ENTRIES)
