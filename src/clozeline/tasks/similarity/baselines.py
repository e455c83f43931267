"""What learned vectors have to be better than: words in common, weighed by how rare they are.

Shapes: Q queries, D documents, W words, N pairs.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from sklearn.feature_extraction.text import CountVectorizer, TfidfVectorizer

from clozeline.tasks.similarity.ranking import Floats, ScoresOf

_WORD = r"(?u)\b\w+\b"
_SATURATION = 1.2
_LENGTH_SHARE = 0.75


def tfidf_cosines(known: Sequence[str], firsts: Sequence[str], seconds: Sequence[str]) -> npt.NDArray[np.float64]:
    """`cosine_N` of each first text with its second one; how rare words are is told by `known`."""
    vectorizer = TfidfVectorizer(sublinear_tf=True, token_pattern=_WORD).fit(known)
    one, other = vectorizer.transform(firsts), vectorizer.transform(seconds)
    cosine_N: npt.NDArray[np.float64] = np.asarray(one.multiply(other).sum(axis=1)).ravel()
    return cosine_N


def bm25(queries: Sequence[str], documents: Sequence[str]) -> ScoresOf:
    """Scores of all documents for each query (Robertson & Zaragoza 2009, equation 3.15, with k1 = 1.2, b = 0.75, and
    Lucene's idf, which is never negative). A word that a query has twice counts twice.
    """
    vectorizer = CountVectorizer(token_pattern=_WORD)
    weight_DW = vectorizer.fit_transform(documents).astype(np.float64).tocsr()
    num_documents = weight_DW.shape[0]
    length_D = np.asarray(weight_DW.sum(axis=1)).ravel()
    num_having_W = np.bincount(weight_DW.indices, minlength=weight_DW.shape[1])
    idf_W = np.log1p((num_documents - num_having_W + 0.5) / (num_having_W + 0.5))
    document_E = np.repeat(np.arange(num_documents), np.diff(weight_DW.indptr))
    norm_D = _SATURATION * (1 - _LENGTH_SHARE + _LENGTH_SHARE * length_D / length_D.mean())
    times_E = weight_DW.data
    weight_DW.data = idf_W[weight_DW.indices] * times_E * (_SATURATION + 1) / (times_E + norm_D[document_E])
    times_QW = vectorizer.transform(queries).astype(np.float64)

    def scores_of(start: int, stop: int) -> Floats:
        score_BD: Floats = (times_QW[start:stop] @ weight_DW.T).toarray().astype(np.float32)
        return score_BD

    return scores_of
