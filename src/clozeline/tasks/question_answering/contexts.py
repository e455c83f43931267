"""Extractive question answering: the span of a context that answers a question, or no answer.

The baseline is the sentence nearest to the question by TF-IDF.

Shapes: Q questions, W windows, B windows of a batch, L longest of them.
"""

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from torch import Tensor
from torch.nn import functional

from clozeline.params.tasks import QuestionAnsweringParams
from clozeline.records.finetune.scored_items import (
    ConfigFacts,
    HeldOut,
    exact_match,
    f1,
    write_held_out,
    write_test_items,
)
from clozeline.records.finetune.statistics import bootstrap_interval
from clozeline.records.finetune.task_metrics import Headline, ShownItem
from clozeline.tasks import heads
from clozeline.tasks.classification.scores import tfidf_vectorizer
from clozeline.tasks.formats import task_records
from clozeline.tasks.question_answering.data import AnswerCount, ContextQuestion, QuestionCount, select
from clozeline.tasks.question_answering.windows import NO_ANSWER, Windows
from clozeline.tasks.rows import TargetedBatch, training_batches
from clozeline.tasks.selection import count_seen
from clozeline.tasks.task import (
    InputsOf,
    TaskReport,
    answers,
    measuring_batches,
    num_batches,
    only_answer,
    opened_for,
    shown,
    warn_of_unknown_tokens,
)
from clozeline.training.state import Batch

if TYPE_CHECKING:
    from sklearn.feature_extraction.text import TfidfVectorizer


Scores = npt.NDArray[np.float32]
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+")
_NOTHING = "no answer"
F1s = npt.NDArray[np.float64]


@dataclass(frozen=True)
class TokenSpan:
    """First and last token of a span; its score is the sum of their scores."""

    first: int
    last: int
    score: float


def best_span(start_L: Scores, end_L: Scores, most_tokens: int) -> TokenSpan:
    """Return the span of at most `most_tokens` tokens with the highest score; the first of them on a tie."""
    length = len(start_L)
    width = min(most_tokens, length)
    padded = np.concatenate([end_L, np.full(width - 1, -np.inf, dtype=end_L.dtype)])
    sums = start_L[:, None] + np.lib.stride_tricks.sliding_window_view(padded, width)
    first, offset = np.unravel_index(int(sums.argmax()), sums.shape)
    return TokenSpan(int(first), int(first + offset), float(sums[first, offset]))


def best_threshold(margin_Q: npt.NDArray[np.float64], gain_Q: npt.NDArray[np.float64]) -> float:
    """Return the threshold with the largest total gain if questions with a margin above it are left unanswered.

    It is infinite if no question should be left unanswered, and minus infinity if all should.

    Args:
        margin_Q: score of "no answer" minus the score of the best answer.
        gain_Q: gain in a question's figure from leaving it unanswered; negative for a loss.
    """
    order = np.argsort(-margin_Q, kind="stable")
    gains = np.concatenate([[0.0], np.cumsum(gain_Q[order])])
    margins = margin_Q[order]
    is_cut = np.concatenate([[True], margins[:-1] > margins[1:], [True]])
    taken = int(np.flatnonzero(is_cut)[gains[is_cut].argmax()])
    if taken == 0:
        return math.inf
    return float(margins[taken]) if taken < len(margins) else -math.inf


def nearest_sentences(validation: Sequence[ContextQuestion], test: Sequence[ContextQuestion]) -> list[str]:
    """Return for each question of `test` the nearest sentence of its context by TF-IDF cosine.

    The answer is an empty string if the cosine is below a threshold chosen on `validation`.
    """
    vectorizer = tfidf_vectorizer()
    vectorizer.fit([question.context for question in (*validation, *test)])
    known = [_nearest(question, vectorizer) for question in validation]
    gains = [f1(it.texts, "") - f1(it.texts, answer) for it, (answer, _) in zip(validation, known, strict=True)]
    bound = -best_threshold(np.array([-likeness for _, likeness in known]), np.array(gains))
    found = [_nearest(question, vectorizer) for question in test]
    return [answer if likeness >= bound else "" for answer, likeness in found]


def _nearest(question: ContextQuestion, vectorizer: "TfidfVectorizer") -> tuple[str, float]:
    sentences = _SENTENCE_END.split(question.context.strip())
    likeness = (vectorizer.transform(sentences) @ vectorizer.transform([question.question]).T).toarray().ravel()
    best = int(likeness.argmax())
    return sentences[best], float(likeness[best])


@dataclass(frozen=True)
class FoundSpan:
    """Best span of a context, and the margin: score of "no answer" minus the score of the span."""

    text: str
    margin: float


@dataclass(frozen=True)
class SpanFigures:
    """Figures of the test split in metrics/finetune/<task>.json; shares are 0-1."""

    f1: float
    f1_low: float
    f1_high: float
    exact_match: float
    baseline_nearest_sentence_f1: float
    no_answer_f1: float
    no_answer_margin: float | None
    """Margin, chosen on the validation split, above which a question is left unanswered. None: all questions are
    answered, or none is."""
    num_train: int
    num_validation: int
    num_test: int
    num_test_unanswerable: int
    num_windows_train: int
    num_in_several_windows_test: int
    num_cut_questions_test: int
    num_test_contexts_seen_in_pretraining: int
    answers: AnswerCount
    records: QuestionCount


class QuestionAnswering:
    """Extractive question answering with a head that scores both ends of an answer."""

    def __init__(self, inputs: InputsOf[QuestionAnsweringParams]) -> None:
        params = inputs.params
        self._inputs, self._params = inputs, params
        self._questions = select(task_records(params, inputs.data), params)
        self.model = heads.build_answerer(inputs.encoder, inputs.seed, inputs.family)
        opened = opened_for(self.model, inputs)
        self._with_types = heads.tells_pairs_apart(self.model)
        self._train, self._validation, self._test = (
            Windows.encode(part, opened, params)
            for part in (self._questions.train, self._questions.validation, self._questions.test)
        )
        self.trained_on = (self._train.rows,)
        warn_of_unknown_tokens(opened, *self.trained_on)
        self.batches_per_epoch = num_batches(len(self._train.rows), inputs)

    def batches_from(self, epoch: int, index: int) -> Iterator[Batch[TargetedBatch]]:
        return training_batches(
            self._train.rows.length_T,
            self._params.batch_size,
            self._inputs.seed,
            epoch,
            index,
            lambda windows_B: self._train.batch(windows_B, self._with_types),
        )

    def loss_sum(self, inputs: TargetedBatch) -> Tensor:
        """Return the mean of the losses of both ends, summed over the windows (Devlin et al. 2018, section 4.2)."""
        ends = heads.end_logits(self.model, inputs.encoded)
        losses = [
            functional.cross_entropy(logits_BL, inputs.targets_B[:, end], reduction="sum")
            for end, logits_BL in enumerate(ends)
        ]
        return (losses[0] + losses[1]) / 2

    def validation_score(self) -> float:
        """Return F1 at the best margin."""
        questions, found = self._questions.validation, self._find(self._validation)
        return _mean_f1(questions, _answers(found, _margin(questions, found)))

    def test(self) -> TaskReport:
        questions = self._questions
        margin = _margin(questions.validation, self._find(self._validation))
        predicted = _answers(self._find(self._test), margin)
        answered = list(zip(questions.test, predicted, strict=True))
        f1_Q = _f1s(questions.test, predicted)
        nearest_Q = _f1s(questions.test, nearest_sentences(questions.validation, questions.test))
        nothing_Q = _f1s(questions.test, [""] * len(questions.test))
        contexts = sorted({it.context for it in questions.test})

        def headline_on(places: Sequence[int]) -> Headline:
            chosen = {contexts[place] for place in places}
            is_chosen_Q = np.array([it.context in chosen for it in questions.test])
            return _headline(*(f1s[is_chosen_Q] for f1s in (f1_Q, nearest_Q, nothing_Q)))

        top = headline_on(range(len(contexts)))
        figures = SpanFigures(
            f1=top.value,
            f1_low=top.low,
            f1_high=top.high,
            exact_match=_mean_exact(questions.test, predicted),
            baseline_nearest_sentence_f1=top.baseline_value,
            no_answer_f1=top.trivial_value,
            no_answer_margin=margin if math.isfinite(margin) else None,
            num_train=len(questions.train),
            num_validation=len(questions.validation),
            num_test=len(questions.test),
            num_test_unanswerable=sum(not it.is_answerable for it in questions.test),
            num_windows_train=len(self._train.rows),
            num_in_several_windows_test=self._test.num_in_several,
            num_cut_questions_test=self._test.num_cut_questions,
            num_test_contexts_seen_in_pretraining=count_seen(
                {it.context_identity for it in questions.test}, self._inputs.pretraining_text
            ),
            answers=questions.answers,
            records=questions.count,
        )
        items = _shown(questions.test, predicted)
        return TaskReport(
            headline=top,
            figures=asdict(figures),
            confusion=[(_kind(it.is_answerable), _kind(bool(text))) for it, text in answered],
            per_class=_per_group(questions.test, predicted),
            examples=shown(items, self._params.num_examples),
            test_texts=contexts,
            train_texts=sorted({it.context for it in questions.train}),
            headline_on=headline_on,
            first_places={**questions.count.first_places, **questions.answers.first_places},
            only_answer=only_answer([item.predicted for item in items], [item.actual for item in items]),
        )

    def save(self, out: Path) -> None:
        questions = self._questions.validation
        margin = _margin(questions, self._find(self._validation))
        ConfigFacts(no_answer_margin=margin if math.isfinite(margin) else None).add_to(self.model.config)
        heads.save(self.model, self._inputs.encoder, self._params.max_length, out, with_types=self._with_types)
        for write, part in ((write_held_out, questions), (write_test_items, self._questions.test)):
            write(out, [HeldOut(text=it.question, second=it.context, right=it.texts) for it in part])

    def _find(self, part: Windows) -> list[FoundSpan]:
        """Return the best span over all windows of each question."""
        texts = [""] * len(part.questions)
        score_Q = np.full(len(texts), -np.inf)
        nothing_Q = np.full(len(texts), np.inf)
        for window, start_L, end_L in self._logits(part):
            question = int(part.question_W[window])
            nothing_Q[question] = min(nothing_Q[question], float(start_L[NO_ANSWER] + end_L[NO_ANSWER]))
            first, spans = int(part.first_W[window]), part.spans_W[window]
            if len(spans) == 0:
                continue
            inside = slice(first, first + len(spans))
            span = best_span(start_L[inside], end_L[inside], self._params.max_answer_tokens)
            if span.score > score_Q[question]:
                score_Q[question] = span.score
                texts[question] = part.questions[question].context[spans[span.first, 0] : spans[span.last, 1]]
        return [FoundSpan(text, margin) for text, margin in zip(texts, (nothing_Q - score_Q).tolist(), strict=True)]

    def _logits(self, part: Windows) -> Iterator[tuple[int, npt.NDArray[np.float32], npt.NDArray[np.float32]]]:
        encoded = partial(part.rows.encoded, with_types=self._with_types)
        batches = measuring_batches(part.rows.length_T, self._inputs)
        for windows_B, ends in answers(self.model, batches, encoded, heads.end_logits):
            start_BL, end_BL = (logits_BL.float().cpu().numpy() for logits_BL in ends)
            yield from zip(windows_B.tolist(), start_BL, end_BL, strict=True)


def _margin(questions: Sequence[ContextQuestion], found: Sequence[FoundSpan]) -> float:
    gains = [f1(it.texts, "") - f1(it.texts, best.text) for it, best in zip(questions, found, strict=True)]
    return best_threshold(np.array([best.margin for best in found]), np.array(gains))


def _answers(found: Sequence[FoundSpan], margin: float) -> list[str]:
    return ["" if best.margin > margin else best.text for best in found]


def _mean_f1(questions: Sequence[ContextQuestion], predicted: Sequence[str]) -> float:
    return float(_f1s(questions, predicted).mean())


def _f1s(questions: Sequence[ContextQuestion], predicted: Sequence[str]) -> F1s:
    return np.array([f1(it.texts, text) for it, text in zip(questions, predicted, strict=True)])


def _mean_exact(questions: Sequence[ContextQuestion], predicted: Sequence[str]) -> float:
    return float(np.mean([exact_match(it.texts, text) for it, text in zip(questions, predicted, strict=True)]))


def _kind(has_answer: bool) -> str:
    return "answer" if has_answer else _NOTHING


def _per_group(questions: Sequence[ContextQuestion], predicted: Sequence[str]) -> dict[str, dict[str, float]]:
    groups: dict[str, tuple[list[ContextQuestion], list[str]]] = {}
    for question, text in zip(questions, predicted, strict=True):
        group = groups.setdefault(_kind(question.is_answerable), ([], []))
        group[0].append(question)
        group[1].append(text)
    return {
        name: {"f1": _mean_f1(*group), "exact_match": _mean_exact(*group), "num_questions": len(group[0])}
        for name, group in sorted(groups.items())
    }


def _shown(questions: Sequence[ContextQuestion], predicted: Sequence[str]) -> list[ShownItem]:
    return [
        ShownItem(
            {"question": it.question, "context": it.context},
            " / ".join(dict.fromkeys(it.texts)) or _NOTHING,
            text or _NOTHING,
            exact_match(it.texts, text) == 1,
        )
        for it, text in zip(questions, predicted, strict=True)
    ]


def _headline(f1_Q: F1s, nearest_Q: F1s, nothing_Q: F1s) -> Headline:
    low, high = bootstrap_interval(lambda places_Q: float(f1_Q[places_Q].mean()), len(f1_Q))
    return Headline(
        metric="f1",
        value=float(f1_Q.mean()),
        low=low,
        high=high,
        baseline="nearest sentence by TF-IDF",
        baseline_value=float(nearest_Q.mean()),
        trivial="no answer to anything",
        trivial_value=float(nothing_Q.mean()),
    )
