"""Vectors and words of all entries, made once for each model and text, and searched exactly.

Shapes: E entries, H hidden.
"""

import hashlib
import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from clozeline.artifacts.manifest import FILES
from clozeline.inference.embedder import Embedder
from clozeline.progress import ProgressBar
from clozeline.search.entries import Entry, entries_of, parts_of
from clozeline.storage.atomic import remove_folder, replacing_folder
from clozeline.tasks.similarity.bm25 import WordIndex
from clozeline.tasks.similarity.fusion import fused

_LOG = logging.getLogger(__name__)
_FORMAT = b"2"
_VECTORS = "vectors.npy"
_ENTRIES = "entries.parquet"
_CHUNK_TEXTS = 2048
_NOT_FOUND = np.float32(-np.inf)
By = Literal["both", "meaning", "words"]


@dataclass(frozen=True)
class Query:
    """What is looked for, as it was written and as the model of the index reads it."""

    text: str
    vector_H: npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Found:
    """The fields of an entry, and how near it is."""

    library: str
    name: str
    summary: str
    score: float
    """What it was found by: a cosine, BM25, or both fused."""


@dataclass(frozen=True)
class SearchIndex:
    """Entries, their vectors of length 1, and their words."""

    entries: Sequence[Entry]
    vector_EH: npt.NDArray[np.float16]
    words: WordIndex

    @classmethod
    def open(cls, model: Embedder, package: Path, clean: Path, kept: Path) -> Self:
        """The index of `clean` by the model in `package`; it is made if `kept` does not hold just that of these bytes,
        and then takes the place of any other there.

        Raises:
            ArtifactError: there is nothing to search in.
        """
        folder = kept / _key(package, clean)
        if not folder.is_dir():
            _LOG.info("reading every docstring of %s once; later searches are answered from %s", clean, folder)
            with replacing_folder(folder) as beside:
                _build(model, clean, beside)
            for other in kept.glob("[!.]*"):
                if other != folder:
                    remove_folder(other)
        table = pq.read_table(folder / _ENTRIES)
        columns = (table.column(name).to_pylist() for name in ("library", "name", "summary"))
        entries = [Entry(*row) for row in zip(*columns, strict=True)]
        return cls(entries, np.load(folder / _VECTORS), WordIndex.open(folder))

    def nearest(self, query: Query, top_k: int, library: str | None = None, by: By = "both") -> list[Found]:
        """The `top_k` best entries (of one library alone), best first; of equal ones in the order of their names.

        `by`: meaning is the cosine of vectors, words is BM25, and both is `fused`. Entries that have no word in common
        with the query are not found by words.
        """
        is_meant_E = np.array([library in (None, entry.library) for entry in self.entries])
        score_E = np.where(is_meant_E, self._scores(query, is_meant_E, by), _NOT_FOUND)
        best = np.argsort(-score_E, kind="stable")[:top_k]
        return [
            Found(**asdict(self.entries[place]), score=float(score_E[place]))
            for place in best.tolist()
            if np.isfinite(score_E[place])
        ]

    def _scores(self, query: Query, is_meant_E: npt.NDArray[np.bool_], by: By) -> npt.NDArray[np.float32]:
        """Of those that are not meant there are some too, which do not count."""
        if by == "meaning":
            return self._cosines(query)
        words_E = np.where(is_meant_E, self.words.scores(query.text), np.float32(0))
        if by == "words":
            return np.where(words_E > 0, words_E, _NOT_FOUND)
        score_1E = fused(self._cosines(query)[None], words_E[None])
        return score_1E.reshape(-1)

    def _cosines(self, query: Query) -> npt.NDArray[np.float32]:
        cosine_E: npt.NDArray[np.float32] = self.vector_EH.astype(np.float32) @ query.vector_H
        return cosine_E

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
    WordIndex.of(texts).save(folder)
    pq.write_table(pa.Table.from_pylist([asdict(entry) for entry in entries]), folder / _ENTRIES)
