"""Held-out items beside a fine-tuned model, its facts in config.json, and the scores of its answers to items.

Exported graphs are examined on the validation items; a release is compared with the champion on the test items. Exact
match and F1 are those of SQuAD's official script (Rajpurkar et al. 2018). Search is exact: it ranks the matching
candidates of a query among all candidates.

Shapes: N pairs, Q queries, D candidates, H hidden, B queries of a block.
"""

import heapq
import math
import re
import string
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from pydantic import FiniteFloat, PositiveInt

from clozeline.records.record import Record
from clozeline.system.files import sha256_of

FILE = "held_out.jsonl"
MAX_ITEMS = 512
TEST_FILE = "test_items.jsonl"
MAX_TEST_ITEMS = 4096

_ARTICLES = re.compile(r"\b(a|an|the)\b", re.UNICODE)
_PUNCTUATION = frozenset(string.punctuation)

Values = npt.NDArray[np.float64]

Floats = npt.NDArray[np.float32]
# Function (start, stop) → `score_BD` of the queries `start` … `stop - 1`.
ScoresOf = Callable[[int, int], Floats]

# Queries scored together, so that memory does not grow with the number of queries.
_BLOCK = 256


class EntitySpan(Record):
    """An entity: its type, and the characters `start` to `end` of the text."""

    start: int
    end: int
    type: str


class HeldOut(Record):
    """One item and its label."""

    text: str  # the text, the first text of a pair, or the question
    second: str | None = None  # the second text of a pair, or the context of a question
    # Classification: labels of the text. Question answering: every accepted answer; empty if there is none. Similarity:
    # the texts that match it.
    right: tuple[str, ...] = ()
    entities: tuple[EntitySpan, ...] = ()  # tagging: the entities of the text
    score: FiniteFloat | None = None  # similarity of the two texts, 0-1
    recall_at: PositiveInt | None = None  # similarity: a match counts if it is among this many nearest texts


def write_held_out(folder: Path, items: Sequence[HeldOut]) -> None:
    """Write at most `MAX_ITEMS` validation items into a model's folder."""
    _write(folder / FILE, items, MAX_ITEMS)


def write_test_items(folder: Path, items: Sequence[HeldOut]) -> None:
    """Write at most `MAX_TEST_ITEMS` test items into a model's folder."""
    _write(folder / TEST_FILE, items, MAX_TEST_ITEMS)


def _write(path: Path, items: Sequence[HeldOut], most: int) -> None:
    """Write the items with the lowest hashes, a sample without a seed."""
    lines = {item.model_dump_json(exclude_defaults=True) for item in items}
    chosen = heapq.nsmallest(most, lines, key=lambda line: sha256_of(line.encode()))
    path.write_text("".join(f"{line}\n" for line in chosen), encoding="utf-8")


def read_held_out(folder: Path) -> list[HeldOut]:
    """Read the items that `write_held_out` wrote; an empty list if there is no file.

    Raises:
        ArtifactError: a line is not a held-out item.
    """
    return HeldOut.lines(folder / FILE)


@dataclass(frozen=True)
class ConfigFacts:
    """Our own keys in config.json. A missing key has the default given here."""

    reads_pairs: bool = False  # whether a classifier was trained on pairs of texts
    decision_threshold: float | None = None  # score above which a label is given, if a text can have several
    no_answer_margin: float | None = None  # score by which a span has to beat the empty answer

    @classmethod
    def of(cls, config: Any) -> Self:
        """Return the facts in a configuration of transformers."""
        facts: dict[str, Any] = {fact.name: getattr(config, fact.name, fact.default) for fact in fields(cls)}
        return cls(**facts)

    def add_to(self, config: Any) -> None:
        """Set the facts that differ from their default in `config`."""
        for fact in fields(self):
            value = getattr(self, fact.name)
            if value != fact.default:
                setattr(config, fact.name, value)


def normalized(text: str) -> str:
    """Return the text in lower case with single spaces, without punctuation and articles."""
    kept = "".join(character for character in text.lower() if character not in _PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", kept).split())


def exact_match(answers: Sequence[str], predicted: str) -> float:
    """Return 1 if `predicted` is one of `answers`, or if both are empty; else 0."""
    return _best(lambda answer: float(normalized(answer) == normalized(predicted)), answers)


def f1(answers: Sequence[str], predicted: str) -> float:
    """Return the F1 of words between `predicted` and the nearest of `answers`."""
    return _best(lambda answer: _word_f1(normalized(answer).split(), normalized(predicted).split()), answers)


def _best(figure: Callable[[str], float], answers: Sequence[str]) -> float:
    """Return the best figure over the answers. As in the script, answers that normalize to nothing, such as `the`,
    count only if there are no others.
    """
    spoken = [answer for answer in answers if normalized(answer)]
    return max(figure(answer) for answer in spoken or [""])


def _word_f1(answer: Sequence[str], predicted: Sequence[str]) -> float:
    if not answer or not predicted:
        return float(answer == predicted)
    common = sum((Counter(answer) & Counter(predicted)).values())
    return 2 * common / (len(answer) + len(predicted))


def pearson(one_N: Values, other_N: Values) -> float:
    """Return the linear correlation; NaN if the values of either side are constant."""
    if one_N.min() == one_N.max() or other_N.min() == other_N.max():  # a rounded mean may differ from all of them
        return math.nan
    one_N, other_N = one_N - one_N.mean(), other_N - other_N.mean()
    lengths = math.sqrt(float(one_N @ one_N)) * math.sqrt(float(other_N @ other_N))
    return float(np.clip(one_N @ other_N / lengths, -1.0, 1.0))


def spearman(one_N: Values, other_N: Values) -> float:
    """Return the correlation of ranks; ties share the mean of their ranks. NaN if the values of either side are
    constant.
    """
    return pearson(ranks(one_N), ranks(other_N))


def ranks(values_N: Values) -> Values:
    """Return ranks from 1, the smallest value first; ties share the mean of their ranks."""
    _, place_N, num_equal = np.unique(values_N, return_inverse=True, return_counts=True)
    last = np.cumsum(num_equal)
    mean: Values = last - (num_equal - 1) / 2
    return mean[place_N]


@dataclass(frozen=True)
class Ranked:
    """Result of the search for each query."""

    # Rank, from 1, of the best matching candidate; other candidates with the same score rank before it.
    rank_Q: npt.NDArray[np.int64]
    best_Q: npt.NDArray[np.int64]  # index of the candidate with the highest score; the first of them on a tie

    def of(self, queries: Sequence[int]) -> Self:
        """Return the result for these queries only."""
        return type(self)(self.rank_Q[list(queries)], self.best_Q[list(queries)])

    def recall_at(self, k: int) -> npt.NDArray[np.float64]:
        """Return 1 for each query with a matching candidate among the first `k`, else 0."""
        return (self.rank_Q <= k).astype(np.float64)

    @property
    def reciprocal(self) -> npt.NDArray[np.float64]:
        """Reciprocal ranks; their mean is the MRR (Voorhees 1999)."""
        return 1.0 / self.rank_Q


def ranked(scores_of: ScoresOf, belonging: Sequence[Sequence[int]]) -> Ranked:
    """Rank all candidates for each query.

    Args:
        scores_of: returns the scores of a block of queries.
        belonging: for each query the indices of its matching candidates, at least one.
    """
    (found,) = ranked_by_each(lambda start, stop: (scores_of(start, stop),), belonging)
    return found


def ranked_by_each(scores_of: Callable[[int, int], Sequence[Floats]], matches: Sequence[Sequence[int]]) -> list[Ranked]:
    """Rank by several scores of the same queries and candidates; each block is scored once."""
    blocks = []
    for start in range(0, len(matches), _BLOCK):
        stop = min(start + _BLOCK, len(matches))
        blocks.append([_ranked(score_BD, matches[start:stop]) for score_BD in scores_of(start, stop)])
    return [
        Ranked(np.concatenate([part.rank_Q for part in parts]), np.concatenate([part.best_Q for part in parts]))
        for parts in zip(*blocks, strict=True)
    ]


def _ranked(score_BD: Floats, belonging: Sequence[Sequence[int]]) -> Ranked:
    """Rank one block. Arrays over P hold the pairs of a query and a matching candidate, grouped by query."""
    size_B = np.array([len(own) for own in belonging])
    start_B = np.cumsum(size_B) - size_B
    query_P = np.repeat(np.arange(len(belonging)), size_B)
    score_P = score_BD[query_P, np.concatenate([np.array(own, dtype=np.int64) for own in belonging])]
    best_B = np.maximum.reduceat(score_P, start_B)
    num_as_good_B = (score_BD >= best_B[:, None]).sum(axis=1)
    num_own_B = np.add.reduceat((score_P >= best_B[query_P]).astype(np.int64), start_B)
    return Ranked(1 + num_as_good_B - num_own_B, score_BD.argmax(axis=1))


def by_vectors(queries_QH: Floats, candidates_DH: Floats) -> ScoresOf:
    """Return a scorer by cosine, for vectors of length 1."""
    return lambda start, stop: queries_QH[start:stop] @ candidates_DH.T


def chance_of_recall(num_candidates: int, belonging: Sequence[Sequence[int]], k: int) -> float:
    """Return the expected recall at `k` of a random order: 1 minus the probability that no match is drawn."""
    drawn = np.arange(min(k, num_candidates))
    chances = {
        num: 1.0 - float(np.prod(np.maximum(num_candidates - num - drawn, 0) / (num_candidates - drawn)))
        for num in {len(own) for own in belonging}
    }
    return float(np.mean([chances[len(own)] for own in belonging]))
