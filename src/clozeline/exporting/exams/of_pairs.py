"""Exams of encoders that were fine-tuned on pairs: correlation of cosines with scores, or search for matching texts.

Shapes: A answers, D second texts, H hidden, T texts.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from clozeline.artifacts.finetune.model.held_out import HeldOut
from clozeline.exporting.answers import UNKNOWN, Answers, embeddings
from clozeline.exporting.exams.exam import Exam, Holds
from clozeline.exporting.exams.of_encoders import halves_exam
from clozeline.exporting.ratios import Counts
from clozeline.exporting.sample import Sample
from clozeline.inference.batching import Batch
from clozeline.inference.open_model import OpenModel
from clozeline.inference.tokenization import TokenizedText
from clozeline.tasks.scores.correlations import Values, spearman
from clozeline.tasks.scores.ranking import Floats, by_vectors, ranked

_DECIMALS = 5
"""Decimals of cosines. Smaller differences are rounding and must not order pairs that are equally similar."""


@dataclass(frozen=True, kw_only=True)
class CosinesExam(Exam):
    """Exam of scored pairs; the texts of a pair follow each other.

    An answer is whether a pair has a higher cosine than the pair before it.
    """

    score_A: Values

    def num_items(self, fp32: Answers) -> int:
        return len(self.score_A)

    def answers(self, model: OpenModel, grouped: Iterable[Batch]) -> Answers:
        embeddings_TH = embeddings(model, grouped)
        cosine_A = _cosines(embeddings_TH)
        return Answers((cosine_A > np.roll(cosine_A, 1)).astype(np.int64), embeddings_TH)

    def counts(self, given: Answers, fp32: Answers) -> Counts:
        """Return the sums of Spearman's correlation, computed as for the task."""
        part_A = _shares_of_correlation(self.score_A, _cosines(_embeddings(given)))
        return Counts(part_A, np.ones(len(part_A)))


@dataclass(frozen=True, kw_only=True)
class SearchExam(Exam):
    """Exam of retrieval. An answer is the second text nearest to a first text.

    In `texts`, a first text precedes those of its matches that are new.
    """

    is_first_T: Holds
    belonging: Sequence[Sequence[int]]
    """For each first text, the indices of its matches among the second texts."""
    recall_at: int

    def num_items(self, fp32: Answers) -> int:
        return len(self.belonging)

    def answers(self, model: OpenModel, grouped: Iterable[Batch]) -> Answers:
        embeddings_TH = embeddings(model, grouped)
        firsts_AH, seconds_DH = self._parted(embeddings_TH)
        return Answers((firsts_AH @ seconds_DH.T).argmax(axis=1), embeddings_TH)

    def counts(self, given: Answers, fp32: Answers) -> Counts:
        """Return the sums of the recall, computed as for the task."""
        found = ranked(by_vectors(*self._parted(_embeddings(given))), self.belonging)
        return Counts(found.recall_at(self.recall_at), np.ones(len(self.belonging)))

    def _parted(self, embeddings_TH: Floats) -> tuple[Floats, Floats]:
        """Split into first and second texts; there may be fewer embeddings than texts in the exam."""
        is_first_T = self.is_first_T[: len(embeddings_TH)]
        return embeddings_TH[is_first_T], embeddings_TH[~is_first_T]


def similarity_exam(model: OpenModel, sample: Sample) -> Exam:
    """Return the exam on the held-out pairs, or on halves of texts if the pairs cannot rank anything (all scores equal,
    or a single second text).

    Raises:
        DataError: no text has halves.
    """
    scored = [item for item in sample.held_out if item.score is not None]
    if len({item.score for item in scored}) > 1:
        return _cosines_exam(model, scored)
    search = _search_exam(model, [item for item in sample.held_out if item.recall_at and item.right])
    return halves_exam(model, sample) if search is None else search


def _cosines_exam(model: OpenModel, items: Sequence[HeldOut]) -> Exam:
    texts = [text for item in items for text in (item.text, item.second or "")]
    return CosinesExam(
        texts=model.tokenize(texts, truncate=True),
        text_A=np.arange(len(items)),
        true_A=np.full(len(items), UNKNOWN),
        metric="Spearman correlation",
        score_A=np.array([item.score for item in items], dtype=np.float64),
    )


def _search_exam(model: OpenModel, items: Sequence[HeldOut]) -> Exam | None:
    """Return the retrieval exam; None if the pairs have fewer than two second texts with distinct tokens."""
    firsts = model.tokenize([item.text for item in items], truncate=True)
    different = list(dict.fromkeys(text for item in items for text in item.right))
    seconds = dict(zip(different, model.tokenize(different, truncate=True), strict=True))
    texts: list[TokenizedText] = []
    place: dict[bytes, int] = {}
    belonging: list[list[int]] = []
    is_first_T: list[bool] = []
    for item, first in zip(items, firsts, strict=True):
        # Texts with equal tokens count as one, because rounding would decide which of them is nearer.
        own = {seconds[text].ids_L.tobytes(): seconds[text] for text in item.right}
        new = {ids: text for ids, text in own.items() if ids not in place}
        place |= {ids: number for number, ids in enumerate(new, start=len(place))}
        belonging.append(sorted(place[ids] for ids in own))
        texts += [first, *new.values()]
        is_first_T += [True, *(False for _ in new)]
    if len(place) < 2:
        return None
    recall_at = _telling(items[0].recall_at or 1, len(place))
    return SearchExam(
        texts=texts,
        text_A=np.arange(len(items)),
        true_A=np.full(len(items), UNKNOWN),
        metric=f"recall at {recall_at}",
        is_first_T=np.array(is_first_T),
        belonging=belonging,
        recall_at=recall_at,
    )


def _telling(recall_at: int, num_seconds: int) -> int:
    """Return `recall_at`, or 1 if it covers all second texts, because recall would then always be 1."""
    return recall_at if recall_at < num_seconds else 1


def _embeddings(given: Answers) -> Floats:
    assert given.embeddings_TH is not None
    return given.embeddings_TH


def _cosines(embeddings_TH: Floats) -> Values:
    """Return the cosine of each text at an even index with the text after it."""
    cosine_A: Values = (embeddings_TH[::2] * embeddings_TH[1::2]).sum(axis=1).astype(np.float64)
    return cosine_A.round(_DECIMALS)


def _shares_of_correlation(score_A: Values, cosine_A: Values) -> npt.NDArray[np.float64]:
    """Return the jackknife pseudo-value (Tukey 1958) of each pair; their mean estimates the correlation.

    They are needed because a rank correlation is not a sum over pairs. All are 0 if the correlation is not positive.
    """
    correlation, num_pairs = spearman(score_A, cosine_A), len(score_A)
    if not correlation > 0:
        return np.zeros(num_pairs)
    without_A = np.array([spearman(np.delete(score_A, n), np.delete(cosine_A, n)) for n in range(num_pairs)])
    without_A = np.nan_to_num(without_A)  # NaN if all remaining values are equal
    shares_A: npt.NDArray[np.float64] = correlation + (num_pairs - 1) * (without_A.mean() - without_A)
    return shares_A
