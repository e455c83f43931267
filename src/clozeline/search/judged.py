"""nDCG@10 and recall@10 of an encoder, of BM25 and of both together, as pytrec_eval computes them for BEIR.

Shapes: Q queries, B queries of a block, D documents, H hidden.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from clozeline.artifacts.record import Record
from clozeline.inference.embedder import Embedder
from clozeline.progress import ProgressBar
from clozeline.search.beir import JudgedQueries
from clozeline.tasks.intervals import Figure, Range, bootstrap_interval, paired_interval
from clozeline.tasks.scores.ranking import Floats, by_vectors
from clozeline.tasks.similarity.baselines import bm25, scorer_with_fusion

K = 10
_BLOCK = 64
_CHUNK_TEXTS = 512
METHODS = ("encoder", "BM25", "both")
_BASELINE = "BM25"
_QUERY_PROMPTS, _DOCUMENT_PROMPTS = ("query", "queries", "search_query"), ("document", "passage", "search_document")


class Measured(Record):
    """A mean over queries with its interval."""

    value: float
    interval: Range
    lead: Range | None = None
    """Interval of the difference to BM25, paired by query; None for BM25."""


class MethodFigures(Record):
    """Figures of one method."""

    method: str
    ndcg_at_10: Measured
    recall_at_10: Measured


class Retrieval(Record):
    """Figures of all methods on one data set."""

    num_queries: int
    num_documents: int
    methods: tuple[MethodFigures, ...]


def retrieval(model: Embedder, judged: JudgedQueries) -> Retrieval:
    """Search the documents for each query by every method, exactly."""
    queries_QH = _embedded(model, judged.queries, "queries", _QUERY_PROMPTS)
    documents_DH = _embedded(model, judged.documents, "documents", _DOCUMENT_PROMPTS)
    words = bm25(judged.queries, judged.documents)
    scores_of = scorer_with_fusion(by_vectors(queries_QH, documents_DH), words)
    order = Order.of(judged)
    found: dict[str, list[tuple[float, float]]] = {method: [] for method in METHODS}
    with ProgressBar("search", len(judged.queries)) as bar:
        for start in range(0, len(judged.queries), _BLOCK):
            stop = min(start + _BLOCK, len(judged.queries))
            cosine_BD, words_BD, both_BD = scores_of(start, stop)
            words_BD = np.where(words_BD > 0, words_BD, -np.inf)  # BM25 does not find a document without a common word
            for method, score_BD in zip(METHODS, (cosine_BD, words_BD, both_BD), strict=True):
                for query, score_D in enumerate(score_BD, start=start):
                    found[method].append(figures_of(order.first(score_D, query), judged.gains[query]))
            bar.advance(stop - start)
    ndcg, recall = ({method: np.array(pairs)[:, figure] for method, pairs in found.items()} for figure in (0, 1))
    methods = tuple(
        MethodFigures(method=method, ndcg_at_10=_measured(ndcg, method), recall_at_10=_measured(recall, method))
        for method in METHODS
    )
    return Retrieval(num_queries=len(judged.queries), num_documents=len(judged.documents), methods=methods)


@dataclass(frozen=True)
class Order:
    """Order of equal scores: by falling id, as trec_eval has it. A document with the id of the query is not found."""

    by_id_D: npt.NDArray[np.int64]
    own_Q: Sequence[int | None]
    """Place of the document that is the query itself; None: there is none."""

    @classmethod
    def of(cls, judged: JudgedQueries) -> "Order":
        place_of = {identity: place for place, identity in enumerate(judged.document_ids)}
        by_id = sorted(range(len(judged.document_ids)), key=judged.document_ids.__getitem__, reverse=True)
        return cls(np.array(by_id, dtype=np.int64), [place_of.get(identity) for identity in judged.query_ids])

    def first(self, score_D: Floats, query: int) -> list[int]:
        """Return the places of the first `K` documents of a query, best first."""
        if (own := self.own_Q[query]) is not None:
            score_D = score_D.copy()
            score_D[own] = -np.inf
        least = np.partition(score_D, -K)[-K] if len(score_D) > K else -np.inf
        places = self.by_id_D[(score_D >= least)[self.by_id_D]]
        best = places[np.argsort(-score_D[places], kind="stable")][:K]
        return [place for place in best.tolist() if np.isfinite(score_D[place])]


def figures_of(found: Sequence[int], gains: Mapping[int, int]) -> tuple[float, float]:
    """Return nDCG@10 (gain: the relevance, discount: log2 of rank + 1) and recall@10 of one query."""
    ideal = sorted(gains.values(), reverse=True)[:K]
    ndcg = _dcg([gains.get(place, 0) for place in found]) / _dcg(ideal)
    return ndcg, sum(place in gains for place in found) / len(gains)


def _dcg(gains: Sequence[int]) -> float:
    return float(sum(gain / np.log2(rank + 1) for rank, gain in enumerate(gains, start=1)))


def _embedded(model: Embedder, texts: Sequence[str], name: str, prompts: Sequence[str]) -> Floats:
    """Return `vector_TH`, with the prompt that the model has for these texts, if it has one."""
    prompt = next((prompt for prompt in prompts if prompt in model.manifest.prompts), None)
    vector_TH = np.empty((len(texts), model.manifest.hidden_size), dtype=np.float32)
    with ProgressBar(name, len(texts)) as bar:
        for start in range(0, len(texts), _CHUNK_TEXTS):
            chunk = texts[start : start + _CHUNK_TEXTS]
            vector_TH[start : start + len(chunk)] = model.embed(chunk, truncate=True, prompt_name=prompt)
            bar.advance(len(chunk))
    return vector_TH


def _measured(values: Mapping[str, npt.NDArray[np.float64]], method: str) -> Measured:
    def mean_of(name: str) -> Figure:
        return lambda places_Q: float(values[name][places_Q].mean())

    ours_Q = values[method]
    low, high = bootstrap_interval(mean_of(method), len(ours_Q))
    found = Measured(value=float(ours_Q.mean()), interval=Range(low=low, high=high))
    if method == _BASELINE:
        return found
    low, high = paired_interval(mean_of(method), mean_of(_BASELINE), len(ours_Q))
    return found.model_copy(update={"lead": Range(low=low, high=high)})
