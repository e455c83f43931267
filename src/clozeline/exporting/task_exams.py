"""Exams of fine-tuned models: labels, scores and tags of texts, similarity of pairs, and answers to questions.

A classifier is asked for the label of a text, for each of several labels, or for which of two texts has the higher
score; an encoder that was fine-tuned on pairs for the correlation of cosines with scores, or for matching texts; other
models for the tags of words, or for the span of an answer.

Shapes: A answers, C labels, D second texts, H hidden, L tokens, T texts, W words of a text.
"""

import math
import re
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from clozeline.exporting import exams
from clozeline.exporting.exams import UNKNOWN, Answers, Count, Counts, Exam, Places, Sample
from clozeline.inference.answerer import Answerer, context_of, spans_in
from clozeline.inference.classifier import Classifier, Extent, Tagger, extents
from clozeline.inference.fields import OUTSIDE, AnswerSearch
from clozeline.inference.open_model import OpenModel, Rows
from clozeline.inference.tokenization import Given, TokenizedText, Window
from clozeline.records.finetune import scored_items
from clozeline.records.finetune.scored_items import EntitySpan, Floats, HeldOut, Values

# Decimals of cosines. Smaller differences are rounding and must not order pairs that are equally similar.
_DECIMALS = 5

_WORD = re.compile(r"\S+")
_QUESTION_WORDS = 8
_SEARCH = AnswerSearch(max_answer_len=30)
_NO_ANSWER = -1
_END_BITS = 32


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
    """Return the exam of a model with one score: whether each text has a higher score than the text before it."""
    number_T = np.arange(len(read))
    true_A, metric = np.full_like(number_T, UNKNOWN), "order agreement"
    known = [score for score in scores if score is not None]
    if len(known) == len(read) and len(set(known)) > 1:
        score_T = np.array(known)
        true_A, metric = np.where(score_T == np.roll(score_T, 1), UNKNOWN, exams.is_higher(score_T)), "order accuracy"
    ask = exams.reading(_like_scores)
    return Exam(
        texts=read,
        text_A=number_T,
        true_A=true_A,
        metric=metric,
        answers=lambda model, grouped: Answers(exams.is_higher(ask(model, grouped).top1_A)),
    )


def _like_scores(position: int, rows: Rows) -> Places:
    """Return integers that sort like the scores."""
    bits = rows.astype(np.float32).view(np.int32).astype(np.int64)
    return np.where(bits < 0, -(bits & 0x7FFFFFFF), bits)


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
    """Return the exam of a model that gives several labels to a text: for each label of each text 1 or 0."""
    text_A = np.repeat(np.arange(len(read)), len(labels))
    true_A = np.array([label in of_text for of_text in labels_T for label in labels], dtype=np.int64)
    least_logit = math.log(threshold / (1 - threshold)) if 0 < threshold < 1 else math.inf * (threshold - 0.5)

    def micro_f1(given: Answers, fp32: Answers) -> Counts:
        """Labels that a text does not have are no items."""
        is_given_A, is_right_A = given.top1_A == 1, (true_A if true_A.any() else fp32.top1_A) == 1
        whole_T = exams.per_text(is_given_A, text_A) + exams.per_text(is_right_A, text_A)
        return Counts(2 * exams.per_text(is_given_A & is_right_A, text_A), whole_T, num_right=int(is_right_A.sum()))

    return Exam(
        texts=read,
        text_A=text_A,
        true_A=true_A,
        metric="micro F1" if true_A.any() else "label agreement",
        answers=exams.reading(lambda position, rows: (rows > least_logit).astype(np.int64)),
        count=micro_f1,
        says=lambda top1_A: top1_A == 1,  # on most labels both graphs agree trivially
    )


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
    return _halves_exam(model, sample) if search is None else search


def _halves_exam(model: OpenModel, sample: Sample) -> Exam:
    """Return the exam in which each first half has to find its second half.

    Second halves with equal tokens are used once, because rounding would decide which is nearer.

    Raises:
        DataError: no text has two tokens.
    """
    every = _halves(model.tokenize(sample.texts, truncate=True), model.manifest.special_tokens.ids)
    if not every:
        raise exams.nothing_to_ask("no text with at least two tokens")
    texts = [half for place in exams.different(every[1::2], sample) for half in every[2 * place : 2 * place + 2]]
    number_A = np.arange(len(texts) // 2)
    ask = exams.comparing(lambda embeddings_TH: (embeddings_TH[::2] @ embeddings_TH[1::2].T).argmax(axis=1))
    return Exam(texts=texts, text_A=number_A, true_A=number_A, metric="halves found", answers=ask)


def _halves(texts: Sequence[TokenizedText], special_ids: Sequence[int]) -> list[TokenizedText]:
    """Return the first and the second half of each text of at least two tokens, alternating.

    A first half has to find its own second half among all. Special tokens are in both.
    """
    parts = []
    for text in texts:
        places = np.flatnonzero(~np.isin(text.ids_L, special_ids))
        middle = len(places) // 2
        if middle:
            parts += [TokenizedText(np.delete(text.ids_L, cut), ()) for cut in (places[middle:], places[:middle])]
    return parts


def _cosines_exam(model: OpenModel, items: Sequence[HeldOut]) -> Exam:
    """Return the exam of scored pairs: whether each has a higher cosine than the pair before it."""
    texts = [text for item in items for text in (item.text, item.second or "")]
    return Exam(
        texts=model.tokenize(texts, truncate=True),
        text_A=np.arange(len(items)),
        true_A=np.full(len(items), UNKNOWN),
        metric="Spearman correlation",
        answers=exams.comparing(lambda embeddings_TH: exams.is_higher(_cosines(embeddings_TH))),
        count=correlation_with(np.array([item.score for item in items], dtype=np.float64)),
    )


def correlation_with(score_A: Values) -> Count:
    """Count Spearman's correlation of the pairs' cosines with `score_A`, computed as for the task."""

    def count(given: Answers, fp32: Answers) -> Counts:
        part_A = _shares_of_correlation(score_A, _cosines(_embeddings(given)))
        return Counts(part_A, np.ones(len(part_A)))

    return count


def _search_exam(model: OpenModel, items: Sequence[HeldOut]) -> Exam | None:
    """Return the retrieval exam; None if the pairs have fewer than two second texts with distinct tokens.

    An answer is the second text nearest to a first text. A first text precedes those of its matches that are new.
    """
    firsts = model.tokenize([item.text for item in items], truncate=True)
    different = list(dict.fromkeys(text for item in items for text in item.right))
    seconds = dict(zip(different, model.tokenize(different, truncate=True), strict=True))
    texts: list[TokenizedText] = []
    place: dict[bytes, int] = {}
    belonging: list[list[int]] = []
    kinds: list[bool] = []
    for item, first in zip(items, firsts, strict=True):
        # Texts with equal tokens count as one, because rounding would decide which of them is nearer.
        own = {seconds[text].ids_L.tobytes(): seconds[text] for text in item.right}
        new = {ids: text for ids, text in own.items() if ids not in place}
        place |= {ids: number for number, ids in enumerate(new, start=len(place))}
        belonging.append(sorted(place[ids] for ids in own))
        texts += [first, *new.values()]
        kinds += [True, *(False for _ in new)]
    if len(place) < 2:
        return None
    recall_at = items[0].recall_at or 1
    if recall_at >= len(place):  # recall over all second texts would always be 1
        recall_at = 1
    is_first_T = np.array(kinds)

    def parted(embeddings_TH: Floats) -> tuple[Floats, Floats]:
        """Split into first and second texts; there may be fewer embeddings than texts in the exam."""
        among_T = is_first_T[: len(embeddings_TH)]
        return embeddings_TH[among_T], embeddings_TH[~among_T]

    def nearest(embeddings_TH: Floats) -> Places:
        firsts_AH, seconds_DH = parted(embeddings_TH)
        nearest_A: Places = (firsts_AH @ seconds_DH.T).argmax(axis=1)
        return nearest_A

    def recall(given: Answers, fp32: Answers) -> Counts:
        found = scored_items.ranked(scored_items.by_vectors(*parted(_embeddings(given))), belonging)
        return Counts(found.recall_at(recall_at), np.ones(len(belonging)))

    return Exam(
        texts=texts,
        text_A=np.arange(len(items)),
        true_A=np.full(len(items), UNKNOWN),
        metric=f"recall at {recall_at}",
        answers=exams.comparing(nearest),
        count=recall,
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


def tags_exam(model: Tagger, sample: Sample) -> Exam:
    """Return the exam of a tagger, with the held-out sentences or otherwise the texts of the sample.

    An answer is the tag at the first token of a word; words are separated by white space. Only the first window of a
    long text is used.

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
    tags, first_TW = model.manifest.labels, [first_W for first_W, _ in placed]
    outside = tags.index(OUTSIDE) if OUTSIDE in tags else UNKNOWN

    def entities(given: Answers) -> list[frozenset[Extent]]:
        of_text = np.split(given.top1_A, np.cumsum([len(first_W) for first_W in first_TW])[:-1])
        return [frozenset(extents([tags[place] for place in said_W.tolist()])) for said_W in of_text]

    def entity_f1(given: Answers, fp32: Answers) -> Counts:
        """Words outside of entities are no items."""
        right_T = true_T if any(true_T) else entities(fp32)
        pairs = list(zip(entities(given), right_T, strict=True))
        both_T = np.array([2 * len(found & right) for found, right in pairs], dtype=np.int64)
        whole_T = np.array([len(found) + len(right) for found, right in pairs], dtype=np.int64)
        return Counts(both_T, whole_T, num_right=sum(map(len, right_T)))

    return Exam(
        texts=[window.read for window in windows],
        text_A=text_A,
        true_A=np.full(len(text_A), UNKNOWN),
        metric="entity F1" if any(true_T) else "entity agreement",
        answers=exams.reading(lambda position, rows: rows[first_TW[position]].argmax(axis=1)),
        count=entity_f1,
        says=lambda top1_A: top1_A != outside,  # on most words both graphs agree trivially
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


def answers_exam(model: Answerer, sample: Sample) -> Exam:
    """Return the exam with the held-out questions, or otherwise with the first words of each text as its question.

    An answer is a span of characters of the context, or no answer. Only the first window of a long context is used.
    """
    asked = [(item.text, item.second or item.text) for item in sample.held_out] or [
        (" ".join(text.split()[:_QUESTION_WORDS]), text) for text in sample.texts
    ]
    windows = _first_windows(model.windows(asked), sample)
    contexts = [asked[window.number][1] for window in windows]
    number_T, margin = np.arange(len(windows)), model.manifest.no_answer_margin
    right = [sample.held_out[window.number].right for window in windows] if sample.held_out else []
    right_T = [_in_window(*of) for of in zip(right, windows, contexts, strict=False)]

    def read(position: int, rows: Rows) -> Places:
        found = spans_in(windows[position], rows, 1, _SEARCH)
        if not found.spans or (margin is not None and found.nothing - found.spans[0].logit > margin):
            return np.array([_NO_ANSWER])
        best = found.spans[0]
        return np.array([best.start << _END_BITS | best.end])

    def spoken(given: Answers) -> list[str]:
        return [
            "" if answer == _NO_ANSWER else context[answer >> _END_BITS : answer & ((1 << _END_BITS) - 1)]
            for answer, context in zip(given.top1_A.tolist(), contexts, strict=True)
        ]

    def word_f1(given: Answers, fp32: Answers) -> Counts:
        """As by SQuAD's script."""
        accepted_T = right_T if right else [[text] for text in spoken(fp32)]
        parts = [scored_items.f1(accepted, answer) for accepted, answer in zip(accepted_T, spoken(given), strict=True)]
        return Counts(np.array(parts), np.ones(len(parts)))

    return Exam(
        texts=[window.read for window in windows],
        text_A=number_T,
        true_A=np.full(len(windows), UNKNOWN),
        metric="answer F1" if right else "answer agreement",
        answers=exams.reading(read),
        count=word_f1,
    )


def _in_window(right: Sequence[str], window: Window, context: str) -> list[str]:
    """Return the right answers that occur in the window; if none does, no answer is right."""
    offsets = [window.encoding.offsets[place] for place in context_of(window).tolist()]
    seen = context[offsets[0][0] : offsets[-1][1]] if offsets else ""
    return [answer for answer in right if answer in seen]
