"""Exams of fine-tuned models: labels, scores and tags of texts, similarity of pairs, and answers to questions.

A classifier is asked for the label of a text, for each of several labels, or for which of two texts has the higher
score; an encoder that was fine-tuned on pairs for the correlation of cosines with scores, or for matching texts; other
models for the tags of words, or for the span of an answer.

Shapes: A answers, C labels, D second texts, H hidden, L tokens, T texts, W words of a text.
"""

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from clozeline.exporting import exams
from clozeline.exporting.exams import UNKNOWN, Answers, Counts, Exam, Holds, Places, Sample
from clozeline.inference.answerer import Answerer, context_of, spans_in
from clozeline.inference.classifier import Classifier
from clozeline.inference.fields import OUTSIDE, AnswerSearch
from clozeline.inference.open_model import OpenModel, Rows, TextBatch
from clozeline.inference.tagger import Extent, Tagger, extents
from clozeline.inference.tokenization import Given, TokenizedText, Window
from clozeline.records.finetune import scored_items
from clozeline.records.finetune.scored_items import EntitySpan, Floats, HeldOut, Values

_DECIMALS = 5
"""Decimals of cosines. Smaller differences are rounding and must not order pairs that are equally similar."""

_WORD = re.compile(r"\S+")
_QUESTION_WORDS = 8
_SEARCH = AnswerSearch(max_answer_len=30)
_NO_ANSWER = -1
_END_BITS = 32


@dataclass(frozen=True, kw_only=True)
class LabelSetExam(Exam):
    """Exam of models that give several labels to a text. An answer is 1 or 0 for each label of each text."""

    least_logit: float
    """Logit above which a label is given."""

    def read(self, position: int, rows: Rows) -> Places:
        return (rows > self.least_logit).astype(np.int64)

    def counts(self, given: Answers, fp32: Answers) -> Counts:
        """Return the sums of the micro-averaged F1; labels that a text does not have are no items."""
        is_given_A, is_right_A = given.top1_A == 1, (fp32.top1_A if self.is_agreement else self.true_A) == 1
        both_T = 2 * exams.per_text(is_given_A & is_right_A, self.text_A)
        whole_T = exams.per_text(is_given_A, self.text_A) + exams.per_text(is_right_A, self.text_A)
        return Counts(both_T, whole_T, num_right=int(is_right_A.sum()))

    def matters(self, one: Answers, other: Answers) -> Holds:
        """Return the labels that at least one graph gives; on most labels both agree trivially."""
        return exams.either(one.top1_A == 1, other.top1_A == 1)


class OrderExam(Exam):
    """Exam of models with one score. An answer is whether a text has a higher score than the text before it."""

    def answers(self, model: OpenModel, grouped: Iterable[TextBatch]) -> Answers:
        given = super().answers(model, grouped)
        return Answers((given.top1_A > np.roll(given.top1_A, 1)).astype(np.int64), None)

    def read(self, position: int, rows: Rows) -> Places:
        """Return integers that sort like the scores."""
        bits = rows.astype(np.float32).view(np.int32).astype(np.int64)
        return np.where(bits < 0, -(bits & 0x7FFFFFFF), bits)


def labels_exam(model: Classifier, sample: Sample) -> Exam:
    """Return the exam of a classifier, with the labels of the held-out items or otherwise of the sample."""
    manifest = model.manifest
    asked, labels_T = _items(model, sample)
    every = model.tokenize(asked, truncate=True)
    places = exams.different(every, sample)
    read, labels_T = [every[place] for place in places], [labels_T[place] for place in places]
    if len(manifest.labels) == 1:
        return _order(read, [sample.held_out[place].score for place in places] if sample.held_out else [])
    if manifest.label_scores == "sigmoid":
        # A column holds one label of a text, not all its labels.
        known_T = labels_T if sample.held_out else [()] * len(read)
        threshold = 0.5 if manifest.decision_threshold is None else manifest.decision_threshold
        return _label_sets(manifest.labels, threshold, read, known_T)
    return _one_label(manifest.labels, read, labels_T)


def _order(read: Sequence[TokenizedText], scores: Sequence[float | None]) -> Exam:
    """Return the exam of a model with one score, with the right scores of the texts if all are known."""
    number_T = np.arange(len(read))
    known = [score for score in scores if score is not None]
    if len(known) < len(read) or len(set(known)) < 2:
        return OrderExam(texts=read, text_A=number_T, true_A=np.full_like(number_T, UNKNOWN), metric="order agreement")
    score_T = np.array(known)
    before_T = np.roll(score_T, 1)
    true_A = np.where(score_T == before_T, UNKNOWN, score_T > before_T)
    return OrderExam(texts=read, text_A=number_T, true_A=true_A, metric="order accuracy")


def _items(model: Classifier, sample: Sample) -> tuple[list[Given], list[Sequence[str]]]:
    """Return the input of each item and its labels; empty if unknown."""
    if sample.held_out:
        pairs = [item.text if item.second is None else (item.text, item.second) for item in sample.held_out]
        return list(pairs), [item.right for item in sample.held_out]
    given: list[Given] = [_halved(text) for text in sample.texts] if model.manifest.reads_pairs else [*sample.texts]
    return given, [[] if label is None else [label] for label in sample.labels]


def _halved(text: str) -> tuple[str, str]:
    """Return the two halves of a text as a pair, for a sample without pairs."""
    words = text.split()
    middle = len(words) // 2
    return " ".join(words[:middle]) or text, " ".join(words[middle:]) or text


def _one_label(labels: Sequence[str], read: Sequence[TokenizedText], labels_T: Sequence[Sequence[str]]) -> Exam:
    places = {label: place for place, label in enumerate(labels)}
    true_T = np.array([places.get(one[0], UNKNOWN) if one else UNKNOWN for one in labels_T], dtype=np.int64)
    is_labelled = 2 * int((true_T != UNKNOWN).sum()) >= len(true_T)
    metric = "accuracy" if is_labelled else "label agreement"
    return Exam(texts=read, text_A=np.arange(len(read)), true_A=true_T, metric=metric)


def _label_sets(
    labels: Sequence[str], threshold: float, read: Sequence[TokenizedText], labels_T: Sequence[Sequence[str]]
) -> Exam:
    true_A = np.array([label in of_text for of_text in labels_T for label in labels], dtype=np.int64)
    return LabelSetExam(
        texts=read,
        text_A=np.repeat(np.arange(len(read)), len(labels)),
        true_A=true_A,
        metric="micro F1" if true_A.any() else "label agreement",
        least_logit=math.log(threshold / (1 - threshold)) if 0 < threshold < 1 else math.inf * (threshold - 0.5),
    )


@dataclass(frozen=True, kw_only=True)
class CosinesExam(Exam):
    """Exam of scored pairs; the texts of a pair follow each other.

    An answer is whether a pair has a higher cosine than the pair before it.
    """

    score_A: Values

    def answers(self, model: OpenModel, grouped: Iterable[TextBatch]) -> Answers:
        embeddings_TH = exams.embeddings(model, grouped)
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

    def answers(self, model: OpenModel, grouped: Iterable[TextBatch]) -> Answers:
        embeddings_TH = exams.embeddings(model, grouped)
        firsts_AH, seconds_DH = self._parted(embeddings_TH)
        return Answers((firsts_AH @ seconds_DH.T).argmax(axis=1), embeddings_TH)

    def counts(self, given: Answers, fp32: Answers) -> Counts:
        """Return the sums of the recall, computed as for the task."""
        found = scored_items.ranked(scored_items.by_vectors(*self._parted(_embeddings(given))), self.belonging)
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
    return exams.halves_exam(model, sample) if search is None else search


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
    recall_at = items[0].recall_at or 1
    if recall_at >= len(place):  # recall over all second texts would always be 1
        recall_at = 1
    return SearchExam(
        texts=texts,
        text_A=np.arange(len(items)),
        true_A=np.full(len(items), UNKNOWN),
        metric=f"recall at {recall_at}",
        is_first_T=np.array(is_first_T),
        belonging=belonging,
        recall_at=recall_at,
    )


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
    correlation, num_pairs = scored_items.spearman(score_A, cosine_A), len(score_A)
    if not correlation > 0:
        return np.zeros(num_pairs)
    without_A = np.array(
        [scored_items.spearman(np.delete(score_A, n), np.delete(cosine_A, n)) for n in range(num_pairs)]
    )
    without_A = np.nan_to_num(without_A)  # NaN if all remaining values are equal
    shares_A: npt.NDArray[np.float64] = correlation + (num_pairs - 1) * (without_A.mean() - without_A)
    return shares_A


@dataclass(frozen=True, kw_only=True)
class TagsExam(Exam):
    """Exam of taggers. An answer is the tag at the first token of a word; words are separated by white space."""

    tags: Sequence[str]
    first_TW: Sequence[Places]
    true_T: Sequence[frozenset[Extent]]

    def read(self, position: int, rows: Rows) -> Places:
        said_W: Places = rows[self.first_TW[position]].argmax(axis=1)
        return said_W

    def counts(self, given: Answers, fp32: Answers) -> Counts:
        """Return the sums of the entity F1, against fp32's entities if there are no labels.

        Words outside of entities are no items.
        """
        true_T = self._entities(fp32) if self.is_agreement else self.true_T
        pairs = list(zip(self._entities(given), true_T, strict=True))
        both_T = np.array([2 * len(found & true) for found, true in pairs], dtype=np.int64)
        whole_T = np.array([len(found) + len(true) for found, true in pairs], dtype=np.int64)
        return Counts(both_T, whole_T, num_right=sum(map(len, true_T)))

    def matters(self, one: Answers, other: Answers) -> Holds:
        """Return the words that at least one graph puts into an entity; on most words both agree trivially."""
        outside = self.tags.index(OUTSIDE) if OUTSIDE in self.tags else UNKNOWN
        return exams.either(one.top1_A != outside, other.top1_A != outside)

    def _entities(self, given: Answers) -> list[frozenset[Extent]]:
        ends = np.cumsum([len(first_W) for first_W in self.first_TW])[:-1]
        of_text = np.split(given.top1_A, ends)
        return [frozenset(extents([self.tags[place] for place in said_W.tolist()])) for said_W in of_text]


def tags_exam(model: Tagger, sample: Sample) -> Exam:
    """Return the exam of a tagger, with the held-out sentences or otherwise the texts of the sample.

    Only the first window of a long text is used.

    Raises:
        DataError: no text has a word.
    """
    every = sample.held_out or [HeldOut(text=text) for text in sample.texts]
    windows = _first_windows(model.windows([item.text for item in every]), sample)
    items = [every[window.number] for window in windows]
    texts = [item.text for item in items]
    words_T = [[(word.start(), word.end()) for word in _WORD.finditer(text)] for text in texts]
    placed = [_first_tokens(window, words) for window, words in zip(windows, words_T, strict=True)]
    true_T = [
        _in_words(item.entities, words, seen) for item, words, (_, seen) in zip(items, words_T, placed, strict=True)
    ]
    text_A = np.repeat(np.arange(len(texts)), [len(first_W) for first_W, _ in placed])
    if len(text_A) == 0:
        raise exams.nothing_to_ask(f"{len(texts)} texts without a word, such as {texts[0][:60]!r}")
    return TagsExam(
        texts=[window.read for window in windows],
        text_A=text_A,
        true_A=np.full(len(text_A), UNKNOWN),
        metric="entity F1" if any(true_T) else "entity agreement",
        tags=model.manifest.labels,
        first_TW=[first_W for first_W, _ in placed],
        true_T=true_T,
    )


def _first_windows(windows: Sequence[Window], sample: Sample) -> list[Window]:
    """Return the first window of each text, without windows whose tokens repeat those of another."""
    first = [window for window in windows if window.place == 0]
    return [first[place] for place in exams.different([window.read for window in first], sample)]


def _first_tokens(window: Window, words: Sequence[tuple[int, int]]) -> tuple[Places, list[int]]:
    """Return the first token of each word that has a token in the window, and the indices of these words."""
    starts = [start for start, _ in words]
    first: dict[int, int] = {}
    specials = window.encoding.special_tokens_mask
    for place, (start, end) in enumerate(window.encoding.offsets):
        if not specials[place] and end > start:
            # Byte-level tokens may begin with the space before a word, but their last character is inside it.
            first.setdefault(int(np.searchsorted(starts, end - 1, side="right")) - 1, place)
    seen = sorted(first)
    return np.array([first[word] for word in seen], dtype=np.int64), seen


def _in_words(
    entities: Sequence[EntitySpan], words: Sequence[tuple[int, int]], seen: Sequence[int]
) -> frozenset[Extent]:
    """Return the entities whose first and last word are in `seen`, with word indices into `seen`."""
    place = {word: number for number, word in enumerate(seen)}
    found = set()
    for entity in entities:
        of_entity = [n for n, (start, end) in enumerate(words) if start < entity.end and end > entity.start]
        if of_entity and of_entity[0] in place and of_entity[-1] in place:
            found.add(Extent(entity.type, place[of_entity[0]], place[of_entity[-1]]))
    return frozenset(found)


@dataclass(frozen=True, kw_only=True)
class AnswersExam(Exam):
    """Exam of question answering. An answer is a span of characters of the context, or no answer."""

    windows: Sequence[Window]
    contexts: Sequence[str]
    right_T: Sequence[Sequence[str]]
    no_answer_margin: float | None

    def read(self, position: int, rows: Rows) -> Places:
        found = spans_in(self.windows[position], rows, 1, _SEARCH)
        margin = self.no_answer_margin
        if not found.spans or (margin is not None and found.nothing - found.spans[0].logit > margin):
            return np.array([_NO_ANSWER])
        best = found.spans[0]
        return np.array([best.start << _END_BITS | best.end])

    def counts(self, given: Answers, fp32: Answers) -> Counts:
        """Return the sums of the word F1 of SQuAD's script, against fp32's answers if there are no labels."""
        right_T = [[text] for text in self._texts(fp32)] if self.is_agreement else self.right_T
        parts = [scored_items.f1(right, answer) for right, answer in zip(right_T, self._texts(given), strict=True)]
        return Counts(np.array(parts), np.ones(len(parts)))

    def _texts(self, given: Answers) -> list[str]:
        return [
            "" if answer == _NO_ANSWER else context[answer >> _END_BITS : answer & ((1 << _END_BITS) - 1)]
            for answer, context in zip(given.top1_A.tolist(), self.contexts, strict=True)
        ]


def answers_exam(model: Answerer, sample: Sample) -> Exam:
    """Return the exam with the held-out questions, or otherwise with the first words of each text as its question.

    Only the first window of a long context is used.
    """
    asked = [(item.text, item.second or item.text) for item in sample.held_out] or [
        (" ".join(text.split()[:_QUESTION_WORDS]), text) for text in sample.texts
    ]
    windows = _first_windows(model.windows(asked), sample)
    contexts = [asked[window.number][1] for window in windows]
    number_T = np.arange(len(windows))
    right = [sample.held_out[window.number].right for window in windows] if sample.held_out else []
    return AnswersExam(
        texts=[window.read for window in windows],
        text_A=number_T,
        true_A=np.full(len(windows), UNKNOWN),
        metric="answer F1" if right else "answer agreement",
        windows=windows,
        contexts=contexts,
        right_T=[_in_window(*of) for of in zip(right, windows, contexts, strict=False)],
        no_answer_margin=model.manifest.no_answer_margin,
    )


def _in_window(right: Sequence[str], window: Window, context: str) -> list[str]:
    """Return the right answers that occur in the window; if none does, no answer is right."""
    offsets = [window.encoding.offsets[place] for place in context_of(window).tolist()]
    seen = context[offsets[0][0] : offsets[-1][1]] if offsets else ""
    return [answer for answer in right if answer in seen]
