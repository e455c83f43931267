"""Baselines of similarity: TF-IDF cosine and BM25, and the fusion of BM25 with learned vectors.

Shapes: N pairs.
"""

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from clozeline.tasks.scores.ranking import Floats, ScoresOf
from clozeline.tasks.similarity.bm25 import WordIndex
from clozeline.tasks.similarity.fusion import fused
from clozeline.tasks.tfidf import tfidf_vectorizer


def tfidf_cosines(known: Sequence[str], firsts: Sequence[str], seconds: Sequence[str]) -> npt.NDArray[np.float64]:
    """Return `cosine_N` of each first text with its second text; the word frequencies come from `known`."""
    vectorizer = tfidf_vectorizer().fit(known)
    one, other = vectorizer.transform(firsts), vectorizer.transform(seconds)
    cosine_N: npt.NDArray[np.float64] = np.asarray(one.multiply(other).sum(axis=1)).ravel()
    return cosine_N


def bm25(queries: Sequence[str], documents: Sequence[str]) -> ScoresOf:
    """Return a scorer of all documents for each query; the score is 0 if no word is in common."""
    index = WordIndex.of(documents)
    return lambda start, stop: np.stack([index.scores(query) for query in queries[start:stop]])


def scorer_with_fusion(vectors: ScoresOf, words: ScoresOf) -> Callable[[int, int], Sequence[Floats]]:
    """Return a scorer by vectors, by words, and by their fusion, which `clozeline search` uses."""

    def scores(start: int, stop: int) -> Sequence[Floats]:
        cosine_BD, words_BD = vectors(start, stop), words(start, stop)
        return cosine_BD, words_BD, fused(cosine_BD, words_BD)

    return scores
