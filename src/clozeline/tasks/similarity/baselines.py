"""What learned vectors have to be better than: words in common, weighed by how rare they are; and both at once.

Shapes: N pairs.
"""

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
from sklearn.feature_extraction.text import TfidfVectorizer

from clozeline.tasks.similarity.bm25 import WordIndex
from clozeline.tasks.similarity.fusion import fused
from clozeline.tasks.similarity.ranking import Floats, ScoresOf

_WORD = r"(?u)\b\w+\b"


def tfidf_cosines(known: Sequence[str], firsts: Sequence[str], seconds: Sequence[str]) -> npt.NDArray[np.float64]:
    """`cosine_N` of each first text with its second one; how rare words are is told by `known`."""
    vectorizer = TfidfVectorizer(sublinear_tf=True, token_pattern=_WORD).fit(known)
    one, other = vectorizer.transform(firsts), vectorizer.transform(seconds)
    cosine_N: npt.NDArray[np.float64] = np.asarray(one.multiply(other).sum(axis=1)).ravel()
    return cosine_N


def bm25(queries: Sequence[str], documents: Sequence[str]) -> ScoresOf:
    """Scores of all documents for each query; 0 where no word is in common."""
    index = WordIndex.of(documents)
    return lambda start, stop: np.stack([index.scores(query) for query in queries[start:stop]])


def each_and_both(vectors: ScoresOf, words: ScoresOf) -> Callable[[int, int], Sequence[Floats]]:
    """By meaning, by words, and by both at once: what `clozeline search` goes by."""

    def scores(start: int, stop: int) -> Sequence[Floats]:
        cosine_BD, words_BD = vectors(start, stop), words(start, stop)
        return cosine_BD, words_BD, fused(cosine_BD, words_BD)

    return scores
