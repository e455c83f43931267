"""Baselines of similarity: TF-IDF cosine, BM25, and the fusion of BM25 with learned vectors.

BM25 scores documents by the words they share with a query, weighted by rarity.

Shapes: D documents, W words, E entries (word, document), sorted by word; Q queries, N pairs.
"""

import itertools
import json
import re
from array import array
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
import numpy.typing as npt

from clozeline.records.finetune.scored_items import Floats, ScoresOf
from clozeline.tasks.classification.scores import tfidf_vectorizer

_WORD = re.compile(r"\b\w+\b")
_SATURATION = 1.2
_LENGTH_SHARE = 0.75
_WORDS = "words.json"
_ARRAYS = ("start_W", "document_E", "weight_E")
# Weight of the cosine, chosen on the validation split of the default task: docs/default-recipe.md.
_COSINE_WEIGHT = 2.0
FusionFloats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class WordIndex:
    """Index of the weight that each word adds to the score of each document with it (Robertson & Zaragoza 2009,
    equation 3.15, with k1 = 1.2, b = 0.75, and Lucene's idf, which is never negative).
    """

    places: Mapping[str, int]
    num_documents: int
    start_W: npt.NDArray[np.int64]  # [words + 1]: index of a word's first entry in the other two arrays
    document_E: npt.NDArray[np.int32]
    weight_E: npt.NDArray[np.float32]

    @classmethod
    def of(cls, documents: Sequence[str]) -> Self:
        places: dict[str, int] = {}
        word_E, document_E, times_E, lengths = array("i"), array("i"), array("i"), array("i")
        for number, document in enumerate(documents):
            words = words_of(document)
            counted = Counter(words)
            word_E.extend(places.setdefault(word, len(places)) for word in counted)
            times_E.extend(counted.values())
            document_E.extend(itertools.repeat(number, len(counted)))
            lengths.append(len(words))
        in_order_E = np.argsort(np.array(word_E), kind="stable")
        num_having_W = np.bincount(np.array(word_E, dtype=np.int64), minlength=len(places))
        idf_W = np.log1p((len(documents) - num_having_W + 0.5) / (num_having_W + 0.5))
        length_D = np.array(lengths, dtype=np.float64)
        norm_D = _SATURATION * (1 - _LENGTH_SHARE + _LENGTH_SHARE * length_D / max(length_D.mean(), 1.0))
        times = np.array(times_E, dtype=np.float64)
        weight_E = idf_W[np.array(word_E)] * times * (_SATURATION + 1) / (times + norm_D[np.array(document_E)])
        return cls(
            places,
            len(documents),
            np.concatenate([[0], np.cumsum(num_having_W)]),
            np.array(document_E, dtype=np.int32)[in_order_E],
            weight_E.astype(np.float32)[in_order_E],
        )

    def scores(self, query: str) -> npt.NDArray[np.float32]:
        """Return `score_D`, 0 for documents without a common word. A word that occurs twice in the query counts
        twice.
        """
        score_D = np.zeros(self.num_documents, dtype=np.float32)
        for word, times in Counter(words_of(query)).items():
            place = self.places.get(word)
            if place is not None:
                own = slice(self.start_W[place], self.start_W[place + 1])
                score_D[self.document_E[own]] += times * self.weight_E[own]
        return score_D

    def save(self, folder: Path) -> None:
        content = {"num_documents": self.num_documents, "words": list(self.places)}
        (folder / _WORDS).write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")
        for name in _ARRAYS:
            np.save(folder / f"{name}.npy", getattr(self, name))

    @classmethod
    def open(cls, folder: Path) -> Self:
        """Open a saved index; the arrays are memory-mapped."""
        content = json.loads((folder / _WORDS).read_text(encoding="utf-8"))
        places = {word: place for place, word in enumerate(content["words"])}
        arrays = (np.load(folder / f"{name}.npy", mmap_mode="r") for name in _ARRAYS)
        return cls(places, content["num_documents"], *arrays)


def words_of(text: str) -> list[str]:
    """Return the words of a text in lower case, in their order."""
    return _WORD.findall(text.lower())


def fused(cosine_QD: FusionFloats, words_QD: FusionFloats) -> FusionFloats:
    """Return `score_QD`: a weighted sum of the cosines and of the word scores, scaled to a maximum of 1 for each query.

    Scores are fused instead of ranks, because ranks lose the distance between candidates (convex combination, Bruch,
    Gai & Ingber 2023, section 4).

    Args:
        words_QD: word scores, at least 0; 0 means that no word is in common.
    """
    best_Q1 = words_QD.max(axis=1, keepdims=True)
    score_QD: FusionFloats = words_QD / np.where(best_Q1 > 0, best_Q1, 1) + np.float32(_COSINE_WEIGHT) * cosine_QD
    return score_QD


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
