"""Search in the documented functions, classes and modules of the clean text, and its figures on judged queries.

The index is searched exactly; vectors and words of all entries are built once for each model and text. The figures are
nDCG@10 and recall@10 of an encoder, of BM25 and of both together, as pytrec_eval computes them, on data in BEIR's
layout (Thakur et al. 2021): corpus.jsonl, queries.jsonl, and the judgements in qrels/.

Shapes: E entries, H hidden, Q queries, B queries of a block, D documents.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Literal, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from clozeline.inference.language import Embedder
from clozeline.records import clean_text, record
from clozeline.records.finetune import scored_items, statistics
from clozeline.records.package import FILES
from clozeline.records.reading.files import read_json_lines, read_separated
from clozeline.system import errors, files, progress
from clozeline.system.files import remove_folder, replacing_folder
from clozeline.tasks.similarity.bm25 import WordIndex, bm25, fused, scorer_with_fusion
from clozeline.tasks.similarity.data import parted, without_name

_COLUMNS = (clean_text.SOURCE, clean_text.TITLE, clean_text.TEXT)
_LOG = logging.getLogger(__name__)
_FORMAT = 2
_VECTORS = "vectors.npy"
_ENTRIES = "entries.parquet"
_CHUNK_TEXTS = 2048
_NOT_FOUND = np.float32(-np.inf)
By = Literal["both", "meaning", "words"]

_ID, _TITLE, _TEXT = "_id", "title", "text"
K = 10
_BLOCK = 64
METHODS = ("encoder", "BM25", "both")
_BASELINE = "BM25"
_QUERY_PROMPTS, _DOCUMENT_PROMPTS = ("query", "queries", "search_query"), ("document", "passage", "search_document")


@dataclass(frozen=True, slots=True)
class IndexEntry:
    library: str
    name: str  # qualified name, such as torch.nn.Linear.forward
    summary: str  # first sentence of its docstring


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
        raise errors.ArtifactError(
            f"{clean} has no functions to search for: its texts are without titles",
            do="set the source's `kind: python-docs`, and run `dvc repro`",
        )
    for library, title, text in found:
        summary, description = parted(text)
        yield IndexEntry(library, title, summary), without_name(f"{summary} {description}", title)


@dataclass(frozen=True, slots=True)
class SearchHit(IndexEntry):
    """An entry, and its score."""

    score: float  # cosine, BM25, or both fused, depending on the kind of search


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
        folder = kept / files.fingerprint({"format": _FORMAT}, (package / FILES.manifest, *parts_of(clean)))
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
        self, query: str, vector_H: scored_items.Floats, top_k: int, library: str | None = None, by: By = "both"
    ) -> list[SearchHit]:
        """Return the `top_k` best entries, optionally of one library, best first; ties are in the order of names.

        `vector_H`: the query by the model of the index. `by`: `meaning` is the cosine of vectors, `words` is BM25, and
        `both` is `fused`. `words` does not find entries without a word of the query.
        """
        is_meant_E = np.array([library in (None, entry.library) for entry in self.entries])
        cosine_E = self.vector_EH.astype(np.float32) @ vector_H
        words_E = np.where(is_meant_E, self.words.scores(query), np.float32(0))
        scores_E: dict[By, scored_items.Floats] = {
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


def embedded(model: Embedder, texts: Sequence[str], name: str, prompts: Sequence[str] = ()) -> scored_items.Floats:
    """Return `vector_TH`, with the first of these prompts that the model has; `name`: what the bar shows."""
    prompt = next((prompt for prompt in prompts if prompt in model.manifest.prompts), None)
    vector_TH = np.empty((len(texts), model.manifest.hidden_size), dtype=np.float32)
    with progress.ProgressBar(name, len(texts)) as bar:
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


@dataclass(frozen=True)
class JudgedQueries:
    """Documents, and queries with the relevance of some of the documents."""

    document_ids: list[str]
    documents: list[str]  # title and text of each document
    query_ids: list[str]
    queries: list[str]
    gains: list[dict[int, int]]  # for each query: place of a document → its relevance, above 0

    @classmethod
    def open(cls, folder: Path, split: str = "test") -> Self:
        """Read the documents and the queries that have a relevant document in qrels/<split>.tsv.

        Raises:
            DataError: a file is missing or cannot be read, or no query has a relevant document.
        """
        corpus, queries, judgements = _files(folder, split)
        records = partial(read_json_lines, fields={"the id": _ID, "the text": _TEXT})
        documents = {str(row[_ID]): f"{row.get(_TITLE) or ''} {row[_TEXT]}".strip() for _, row in records(corpus)}
        place_of = {identity: place for place, identity in enumerate(documents)}
        texts = {str(row[_ID]): str(row[_TEXT]) for _, row in records(queries)}
        gains: dict[str, dict[int, int]] = {}
        for query, document, relevance in _judgements(judgements):
            if relevance > 0 and document in place_of and query in texts:
                gains.setdefault(query, {})[place_of[document]] = relevance
        if not gains:
            raise errors.DataError(
                f"{folder}: {judgements.name} has no score above 0 for these queries and documents",
                do="check that the three files are of the same data set",
            )
        return cls([*documents], [*documents.values()], [*gains], [texts[query] for query in gains], [*gains.values()])

    @cached_property
    def _by_id_D(self) -> npt.NDArray[np.int64]:
        """Order of equal scores: by falling id, as trec_eval has it."""
        ids = self.document_ids
        return np.array(sorted(range(len(ids)), key=ids.__getitem__, reverse=True), dtype=np.int64)

    def first(self, score_D: scored_items.Floats, query: int) -> list[int]:
        """Return the places of the first `K` documents of a query, best first. A document with its id is not found."""
        own, most = self.query_ids[query], K + 1
        least = np.partition(score_D, -most)[-most] if len(score_D) > most else -np.inf
        places = self._by_id_D[(score_D >= least)[self._by_id_D]]
        best = places[np.argsort(-score_D[places], kind="stable")][:most].tolist()
        return [place for place in best if self.document_ids[place] != own and np.isfinite(score_D[place])][:K]


def _files(folder: Path, split: str) -> list[Path]:
    """Return the three files, each plain or compressed."""
    names = ("corpus.jsonl", "queries.jsonl", f"qrels/{split}.tsv")
    found = [next(iter(sorted(folder.glob(f"{name}*"))), None) for name in names]
    if missing := [name for name, path in zip(names, found, strict=True) if path is None]:
        raise errors.DataError(
            f"{folder} is no retrieval data in BEIR's layout: there is no {', no '.join(missing)}",
            do="name a folder as BEIR's archives have it (for example scifact)",
        )
    return [path for path in found if path is not None]


def _judgements(path: Path) -> Iterator[tuple[str, str, int]]:
    """Yield query, document and relevance of each line."""
    fields = {"the query": "query-id", "the document": "corpus-id", "the relevance": "score"}
    for place, row in read_separated(path, fields, delimiter="\t"):
        query, document, score = (str(row[name]) for name in fields.values())
        if not score.strip().lstrip("-").isdecimal():
            raise errors.DataError(f"{place}: the score is no whole number: {score[:80]}", do="correct the line")
        yield query, document, int(score)


class MeanOverQueries(record.Record):
    """A mean over queries with its interval."""

    value: float
    interval: statistics.Interval
    lead: statistics.Interval | None = None  # interval of the difference to BM25, paired by query; None for BM25


class MethodFigures(record.Record):
    """Figures of one method."""

    method: str
    ndcg_at_10: MeanOverQueries
    recall_at_10: MeanOverQueries


class Retrieval(record.Record):
    """Figures of all methods on one data set."""

    num_queries: int
    num_documents: int
    methods: tuple[MethodFigures, ...]


def retrieval(model: Embedder, judged: JudgedQueries) -> Retrieval:
    """Search the documents for each query by every method, exactly."""
    queries_QH = embedded(model, judged.queries, "queries", prompts=_QUERY_PROMPTS)
    documents_DH = embedded(model, judged.documents, "documents", prompts=_DOCUMENT_PROMPTS)
    words = bm25(judged.queries, judged.documents)
    scores_of = scorer_with_fusion(scored_items.by_vectors(queries_QH, documents_DH), words)
    found: dict[str, list[tuple[float, float]]] = {method: [] for method in METHODS}
    with progress.ProgressBar("search", len(judged.queries)) as bar:
        for start in range(0, len(judged.queries), _BLOCK):
            stop = min(start + _BLOCK, len(judged.queries))
            cosine_BD, words_BD, both_BD = scores_of(start, stop)
            words_BD = np.where(words_BD > 0, words_BD, -np.inf)  # BM25 does not find a document without a common word
            for method, score_BD in zip(METHODS, (cosine_BD, words_BD, both_BD), strict=True):
                for query, score_D in enumerate(score_BD, start=start):
                    found[method].append(figures_of(judged.first(score_D, query), judged.gains[query]))
            bar.advance(stop - start)

    def figures(method: str) -> MethodFigures:
        of_queries = zip(np.array(found[method]).T, np.array(found[_BASELINE]).T, strict=True)
        ndcg, recall = (_measured(ours_Q, None if method == _BASELINE else words_Q) for ours_Q, words_Q in of_queries)
        return MethodFigures(method=method, ndcg_at_10=ndcg, recall_at_10=recall)

    methods = tuple(map(figures, METHODS))
    return Retrieval(num_queries=len(judged.queries), num_documents=len(judged.documents), methods=methods)


def figures_of(found: Sequence[int], gains: Mapping[int, int]) -> tuple[float, float]:
    """Return nDCG@10 (gain: the relevance, discount: log2 of rank + 1) and recall@10 of one query."""
    ideal = sorted(gains.values(), reverse=True)[:K]
    ndcg = _dcg([gains.get(place, 0) for place in found]) / _dcg(ideal)
    return ndcg, sum(place in gains for place in found) / len(gains)


def _dcg(gains: Sequence[int]) -> float:
    return float(sum(gain / np.log2(rank + 1) for rank, gain in enumerate(gains, start=1)))


def _measured(ours_Q: npt.NDArray[np.float64], baseline_Q: npt.NDArray[np.float64] | None) -> MeanOverQueries:
    def interval(values_Q: npt.NDArray[np.float64]) -> statistics.Interval:
        low, high = statistics.bootstrap_interval(lambda places_Q: float(values_Q[places_Q].mean()), len(values_Q))
        return statistics.Interval(low=low, high=high)

    lead = None if baseline_Q is None else interval(ours_Q - baseline_Q)
    return MeanOverQueries(value=float(ours_Q.mean()), interval=interval(ours_Q), lead=lead)
