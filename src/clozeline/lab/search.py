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
Floats = npt.NDArray[np.float32]
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
        summary, description = parted(text)
        yield IndexEntry(library, title, summary), without_name(f"{summary} {description}", title)


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
        entries = [IndexEntry(**row) for row in pq.read_table(folder / _ENTRIES).to_pylist()]
        return cls(entries, np.load(folder / _VECTORS), WordIndex.open(folder))

    def nearest(
        self, query: str, vector_H: Floats, top_k: int, library: str | None = None, by: By = "both"
    ) -> list[SearchHit]:
        """Return the `top_k` best entries, optionally of one library, best first; ties are in the order of names.

        `vector_H`: the query by the model of the index. `by`: `meaning` is the cosine of vectors, `words` is BM25, and
        `both` is `fused`. `words` does not find entries without a word of the query.
        """
        is_meant_E = np.array([library in (None, entry.library) for entry in self.entries])
        cosine_E = self.vector_EH.astype(np.float32) @ vector_H
        words_E = np.where(is_meant_E, self.words.scores(query), np.float32(0))
        scores_E: dict[By, Floats] = {
            "meaning": cosine_E,
            "words": np.where(words_E > 0, words_E, _NOT_FOUND),
            "both": fused(cosine_E[None], words_E[None]).reshape(-1),
        }
        score_E = np.where(is_meant_E, scores_E[by], _NOT_FOUND)
        best = np.argsort(-score_E, kind="stable")[:top_k]
        return [
            SearchHit(**asdict(self.entries[place]), score=float(score_E[place]))
            for place in best.tolist()
            if np.isfinite(score_E[place])
        ]

    @property
    def libraries(self) -> list[str]:
        return sorted({entry.library for entry in self.entries})


def embedded(model: Embedder, texts: Sequence[str], name: str, prompts: Sequence[str] = ()) -> Floats:
    """Return `vector_TH`, with the first of these prompts that the model has; `name`: what the bar shows."""
    prompt = next((prompt for prompt in prompts if prompt in model.manifest.prompts), None)
    vector_TH = np.empty((len(texts), model.manifest.hidden_size), dtype=np.float32)
    with ProgressBar(name, len(texts)) as bar:
        for start in range(0, len(texts), _CHUNK_TEXTS):
            chunk = texts[start : start + _CHUNK_TEXTS]
            vector_TH[start : start + len(chunk)] = model.embed(chunk, truncate=True, prompt_name=prompt)
            bar.advance(len(chunk))
    return vector_TH


def _build(model: Embedder, clean: Path, folder: Path) -> None:
    entries, texts = zip(*entries_of(clean), strict=True)
    np.save(folder / _VECTORS, embedded(model, texts, "index").astype(np.float16))
    WordIndex.of(texts).save(folder)
    pq.write_table(pa.Table.from_pylist([asdict(entry) for entry in entries]), folder / _ENTRIES)
