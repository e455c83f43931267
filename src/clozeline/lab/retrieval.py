"""nDCG@10 and recall@10 of an encoder, of BM25 and of both together, as pytrec_eval computes them for BEIR.

Data are in BEIR's layout (Thakur et al. 2021): corpus.jsonl, queries.jsonl, and the judgements in qrels/.

Shapes: Q queries, B queries of a block, D documents, H hidden.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Self

import numpy as np
import numpy.typing as npt

from clozeline.inference.language import Embedder
from clozeline.lab.search import embedded
from clozeline.records.finetune.scored_items import Floats, by_vectors
from clozeline.records.finetune.statistics import Interval, bootstrap_interval
from clozeline.records.reading.files import read_json_lines, read_separated
from clozeline.records.record import Record
from clozeline.system.errors import DataError
from clozeline.system.progress import ProgressBar
from clozeline.tasks.similarity.bm25 import bm25, scorer_with_fusion

_ID, _TITLE, _TEXT = "_id", "title", "text"
K = 10
_BLOCK = 64
METHODS = ("encoder", "BM25", "both")
_BASELINE = "BM25"
_QUERY_PROMPTS, _DOCUMENT_PROMPTS = ("query", "queries", "search_query"), ("document", "passage", "search_document")


@dataclass(frozen=True)
class JudgedQueries:
    """Documents, and queries with the relevance of some of the documents."""

    document_ids: list[str]
    documents: list[str]
    """Title and text of each document."""
    query_ids: list[str]
    queries: list[str]
    gains: list[dict[int, int]]
    """For each query: place of a document → its relevance, above 0."""

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
            raise DataError(
                f"{folder}: no query has a relevant document: {judgements.name} has no ids of the {len(texts):,}"
                f" queries and {len(documents):,} documents with a score above 0",
                do="check that the three files are of the same data set",
            )
        return cls([*documents], [*documents.values()], [*gains], [texts[query] for query in gains], [*gains.values()])

    @cached_property
    def _by_id_D(self) -> npt.NDArray[np.int64]:
        """Order of equal scores: by falling id, as trec_eval has it."""
        ids = self.document_ids
        return np.array(sorted(range(len(ids)), key=ids.__getitem__, reverse=True), dtype=np.int64)

    def first(self, score_D: Floats, query: int) -> list[int]:
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
        raise DataError(
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
            raise DataError(f"{place}: the score is no whole number: {score[:80]}", do="correct the line")
        yield query, document, int(score)


class MeanOverQueries(Record):
    """A mean over queries with its interval."""

    value: float
    interval: Interval
    lead: Interval | None = None
    """Interval of the difference to BM25, paired by query; None for BM25."""


class MethodFigures(Record):
    """Figures of one method."""

    method: str
    ndcg_at_10: MeanOverQueries
    recall_at_10: MeanOverQueries


class Retrieval(Record):
    """Figures of all methods on one data set."""

    num_queries: int
    num_documents: int
    methods: tuple[MethodFigures, ...]


def retrieval(model: Embedder, judged: JudgedQueries) -> Retrieval:
    """Search the documents for each query by every method, exactly."""
    queries_QH = embedded(model, judged.queries, "queries", prompts=_QUERY_PROMPTS)
    documents_DH = embedded(model, judged.documents, "documents", prompts=_DOCUMENT_PROMPTS)
    words = bm25(judged.queries, judged.documents)
    scores_of = scorer_with_fusion(by_vectors(queries_QH, documents_DH), words)
    found: dict[str, list[tuple[float, float]]] = {method: [] for method in METHODS}
    with ProgressBar("search", len(judged.queries)) as bar:
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
    def interval(values_Q: npt.NDArray[np.float64]) -> Interval:
        low, high = bootstrap_interval(lambda places_Q: float(values_Q[places_Q].mean()), len(values_Q))
        return Interval(low=low, high=high)

    lead = None if baseline_Q is None else interval(ours_Q - baseline_Q)
    return MeanOverQueries(value=float(ours_Q.mean()), interval=interval(ours_Q), lead=lead)
