"""Index of the documented functions, classes and modules of the clean text, which is searched exactly.

Vectors and words of all entries are built once for each model and text.

Shapes: E entries, H hidden.
"""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from clozeline.inference.language import Embedder
from clozeline.records import clean_text
from clozeline.records.package import FILES
from clozeline.system.content import fingerprint
from clozeline.system.errors import ArtifactError
from clozeline.system.files import remove_folder, replacing_folder
from clozeline.system.progress import ProgressBar
from clozeline.tasks.similarity.bm25 import WordIndex, fused
from clozeline.tasks.similarity.data import parted, without_name

_COLUMNS = (clean_text.SOURCE, clean_text.TITLE, clean_text.TEXT)
_LOG = logging.getLogger(__name__)
_FORMAT = 2
_VECTORS = "vectors.npy"
_ENTRIES = "entries.parquet"
_CHUNK_TEXTS = 2048
_NOT_FOUND = np.float32(-np.inf)
By = Literal["both", "meaning", "words"]


@dataclass(frozen=True, slots=True)
class IndexEntry:
    library: str
    name: str
    """Qualified name, such as torch.nn.Linear.forward."""
    summary: str
    """First sentence of its docstring."""


def parts_of(clean: Path) -> list[Path]:
    """Return the files of the clean text.

    Raises:
        ArtifactError: a file is missing.
    """
    files = [clean_text.file_of(clean, split) for split in clean_text.SPLITS]
    for file in files:
        clean_text.num_rows(file, *_COLUMNS)
    return files


def entries_of(clean: Path) -> Iterator[tuple[IndexEntry, str]]:
    """Yield each entry with its searchable text: its docstring, with its own name replaced.

    Entries are sorted by library and name, so that equal scores are shown in that order.

    Raises:
        ArtifactError: a file is missing, or the text has no titles, so it does not consist of docstrings.
    """
    found = sorted(
        (library, title, text)
        for file in parts_of(clean)
        for columns in clean_text.columns_of(file, *_COLUMNS)
        for library, title, text in zip(*(column.to_pylist() for column in columns), strict=True)
        if title
    )
    if not found:
        raise ArtifactError(
            f"{clean} has no functions to search for: its texts are without titles",
            do="set the source's `kind: python-docs`, and run `dvc repro`",
        )
    for library, title, text in found:
        docstring = parted(text)
        content = without_name(f"{docstring.summary} {docstring.description}", title)
        yield IndexEntry(library, title, docstring.summary), content


@dataclass(frozen=True)
class Query:
    """A query as text and as its embedding by the model of the index."""

    text: str
    vector_H: npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class SearchHit(IndexEntry):
    """An entry, and its score."""

    score: float
    """Cosine, BM25, or both fused, depending on the kind of search."""


@dataclass(frozen=True)
class SearchIndex:
    """Entries, their unit vectors, and their words."""

    entries: Sequence[IndexEntry]
    vector_EH: npt.NDArray[np.float16]
    words: WordIndex

    @classmethod
    def open(cls, model: Embedder, package: Path, clean: Path, kept: Path) -> Self:
        """Open the index of `clean` by the model in `package`.

        If `kept` does not hold the index of exactly these bytes, build it there and remove all others.

        Raises:
            ArtifactError: the clean text is missing or has no entries.
        """
        # Everything that the index is built from; the manifest has the hash of each model file.
        folder = kept / fingerprint({"format": _FORMAT}, (package / FILES.manifest, *parts_of(clean)))
        if not folder.is_dir():
            _LOG.info("embedding every docstring of %s once; later searches read %s", clean, folder)
            with replacing_folder(folder) as beside:
                _build(model, clean, beside)
            for other in kept.glob("[!.]*"):
                if other != folder:
                    remove_folder(other)
        table = pq.read_table(folder / _ENTRIES)
        columns = (table.column(name).to_pylist() for name in ("library", "name", "summary"))
        entries = [IndexEntry(*row) for row in zip(*columns, strict=True)]
        return cls(entries, np.load(folder / _VECTORS), WordIndex.open(folder))

    def nearest(self, query: Query, top_k: int, library: str | None = None, by: By = "both") -> list[SearchHit]:
        """Return the `top_k` best entries, optionally of one library, best first; ties are in the order of names.

        `by`: `meaning` is the cosine of vectors, `words` is BM25, and `both` is `fused`. `words` does not find entries
        without a word of the query.
        """
        is_meant_E = np.array([library in (None, entry.library) for entry in self.entries])
        score_E = np.where(is_meant_E, self._scores(query, is_meant_E, by), _NOT_FOUND)
        best = np.argsort(-score_E, kind="stable")[:top_k]
        return [
            SearchHit(**asdict(self.entries[place]), score=float(score_E[place]))
            for place in best.tolist()
            if np.isfinite(score_E[place])
        ]

    def _scores(self, query: Query, is_meant_E: npt.NDArray[np.bool_], by: By) -> npt.NDArray[np.float32]:
        """Return a score for every entry; the caller discards those of other libraries."""
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
