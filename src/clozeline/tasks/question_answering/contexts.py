"""Extractive question answering: the span of a context that answers a question, or no answer.

The baseline is the sentence nearest to the question by TF-IDF.

Shapes: Q questions, W windows, B windows of a batch, L longest of them.
"""

import math
import re
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor
from torch.nn import functional

from clozeline.params.tasks import QuestionAnsweringParams
from clozeline.records.finetune.scored_items import ConfigFacts, HeldOut, exact_match, f1
from clozeline.records.finetune.statistics import Figure
from clozeline.records.finetune.task_metrics import Headline, ShownItem
from clozeline.tasks import formats, heads, report, rows, task
from clozeline.tasks.classification.scores import tfidf_vectorizer
from clozeline.tasks.question_answering.data import NO_ANSWER, ContextQuestion, ContextQuestions, Windows, select

Scores = npt.NDArray[np.float32]
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+")
_NOTHING = "no answer"
Floats = npt.NDArray[np.float64]


def best_span(start_L: Scores, end_L: Scores, most_tokens: int) -> tuple[int, int, float]:
    """Return the span of at most `most_tokens` tokens with the highest score, the first of them on a tie: its first and
    last token, and the score, which is the sum of those of its ends.
    """
    length = len(start_L)
    width = min(most_tokens, length)
    padded = np.concatenate([end_L, np.full(width - 1, -np.inf, dtype=end_L.dtype)])
    sums = start_L[:, None] + np.lib.stride_tricks.sliding_window_view(padded, width)
    first, offset = np.unravel_index(int(sums.argmax()), sums.shape)
    return int(first), int(first + offset), float(sums[first, offset])


def best_threshold(margin_Q: Floats, gain_Q: Floats) -> float:
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
    gain_Q = _f1s(validation, [""] * len(validation)) - _f1s(validation, [answer for answer, _ in known])
    bound = -best_threshold(np.array([-likeness for _, likeness in known]), gain_Q)
    found = [_nearest(question, vectorizer) for question in test]
    return [answer if likeness >= bound else "" for answer, likeness in found]


def _nearest(question: ContextQuestion, vectorizer: Any) -> tuple[str, float]:
    sentences = _SENTENCE_END.split(question.context.strip())
    likeness = (vectorizer.transform(sentences) @ vectorizer.transform([question.question]).T).toarray().ravel()
    best = int(likeness.argmax())
    return sentences[best], float(likeness[best])


class QuestionAnswering(task.Task[ContextQuestion]):
    """Extractive question answering with a head that scores both ends of an answer."""

    splits: ContextQuestions

    def __init__(self, inputs: task.InputsOf[QuestionAnsweringParams]) -> None:
        params = inputs.params
        splits = select(formats.task_records(params, inputs.data), params)
        model = heads.build(inputs.encoder, "question-answering", inputs.seed, {"num_labels": 2}, family=inputs.family)
        super().__init__(inputs, splits, model, reads_pairs=True)
        self._train, self._validation, self._test = (
            Windows.encode(part, self.opened, params) for part in splits.parts.values()
        )
        self.feed(self._train.rows)

    def batch(self, rows_B: rows.Ids, epoch: int) -> rows.EncodedBatch:
        return self._train.batch(rows_B, self.with_types)

    def loss_sum(self, inputs: rows.EncodedBatch) -> Tensor:
        """Return the mean of the losses of both ends, summed over the windows (Devlin et al. 2018, section 4.2)."""
        losses = [
            functional.cross_entropy(logits_BL, inputs.targets_B[:, end], reduction="sum")
            for end, logits_BL in enumerate(heads.end_logits(self.model, inputs))
        ]
        return (losses[0] + losses[1]) / 2

    def validation_score(self) -> float:
        """Return F1 at the best margin."""
        questions, found = self.splits.validation, self._find(self._validation)
        return float(_f1s(questions, _answers(*found, _margin(questions, *found))).mean())

    def test(self) -> report.TaskReport:
        splits, questions = self.splits, self.splits.test
        margin = _margin(splits.validation, *self._find(self._validation))
        predicted = _answers(*self._find(self._test), margin)
        nearest = nearest_sentences(splits.validation, questions)
        contexts = sorted({it.context for it in questions})

        def mean_f1(texts: Sequence[str]) -> Figure:
            f1_Q = _f1s(questions, texts)
            return lambda place_Q: float(f1_Q[place_Q].mean())

        figure = report.HeadlineFigure(
            "f1",
            mean_f1(predicted),
            ("nearest sentence by TF-IDF", mean_f1(nearest)),
            ("no answer to anything", mean_f1([""] * len(questions))),
            is_paired=False,
        )

        def headline_on(places: Sequence[int]) -> Headline:
            chosen = {contexts[place] for place in places}
            return figure.on([place for place, it in enumerate(questions) if it.context in chosen])

        top = figure.on(range(len(questions)))
        exact_Q = np.array([exact_match(it.texts, text) for it, text in zip(questions, predicted, strict=True)])
        items = [
            ShownItem(
                {"question": it.question, "context": it.context},
                " / ".join(dict.fromkeys(it.texts)) or _NOTHING,
                text or _NOTHING,
                exact == 1,
            )
            for it, text, exact in zip(questions, predicted, exact_Q.tolist(), strict=True)
        ]
        return self.reported(
            self._figures(top, exact_Q, margin),
            items,
            headline=top,
            confusion=[(_kind(it.texts), _kind(text)) for it, text in zip(questions, predicted, strict=True)],
            per_class=_per_group(questions, _f1s(questions, predicted), exact_Q),
            test_texts=contexts,
            train_texts=sorted({it.context for it in splits.train}),
            headline_on=headline_on,
            first_places={**splits.count.first_places, **splits.answers.first_places},
        )

    def _figures(self, top: Headline, exact_Q: npt.NDArray[Any], margin: float) -> dict[str, object]:
        splits, questions = self.splits, self.splits.test
        return {
            "f1": top.value,
            "f1_low": top.low,
            "f1_high": top.high,
            "exact_match": float(exact_Q.mean()),
            "baseline_nearest_sentence_f1": top.baseline_value,
            "no_answer_f1": top.trivial_value,
            # Chosen on the validation split; a question with a margin above it is left unanswered. None: all are
            # answered, or none is.
            "no_answer_margin": margin if math.isfinite(margin) else None,
            **splits.sizes,
            "num_test_unanswerable": sum(not it.is_answerable for it in questions),
            "num_windows_train": len(self._train.rows),
            "num_in_several_windows_test": self._test.num_in_several,
            "num_cut_questions_test": self._test.num_cut_questions,
            "num_test_contexts_seen_in_pretraining": self.num_seen(it.context_identity for it in questions),
            "answers": splits.answers.by_reason,
        }

    def facts(self) -> ConfigFacts:
        margin = _margin(self.splits.validation, *self._find(self._validation))
        return ConfigFacts(no_answer_margin=margin if math.isfinite(margin) else None)

    def held_out(self, items: Sequence[ContextQuestion], most: int) -> list[HeldOut]:
        return [HeldOut(text=it.question, second=it.context, right=it.texts) for it in items]

    def _find(self, part: Windows) -> tuple[list[str], Floats]:
        """Return the best span over all windows of each question, and `margin_Q`: score of "no answer" minus that of
        the span.
        """
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
            start, end, score = best_span(start_L[inside], end_L[inside], self.params.max_answer_tokens)
            if score > score_Q[question]:
                score_Q[question] = score
                texts[question] = part.questions[question].context[spans[start, 0] : spans[end, 1]]
        return texts, nothing_Q - score_Q

    def _logits(self, part: Windows) -> Iterator[tuple[int, Scores, Scores]]:
        encoded = partial(part.rows.encoded, with_types=self.with_types)
        batches = task.measuring_batches(part.rows.length_T, self.inputs)
        for windows_B, ends in task.answers(self.model, batches, encoded, heads.end_logits):
            start_BL, end_BL = (logits_BL.float().cpu().numpy() for logits_BL in ends)
            yield from zip(windows_B.tolist(), start_BL, end_BL, strict=True)


def _margin(questions: Sequence[ContextQuestion], found: Sequence[str], margin_Q: Floats) -> float:
    return best_threshold(margin_Q, _f1s(questions, [""] * len(questions)) - _f1s(questions, found))


def _answers(found: Sequence[str], margin_Q: Floats, margin: float) -> list[str]:
    return ["" if leaves else text for text, leaves in zip(found, margin_Q > margin, strict=True)]


def _f1s(questions: Sequence[ContextQuestion], predicted: Sequence[str]) -> Floats:
    return np.array([f1(it.texts, text) for it, text in zip(questions, predicted, strict=True)])


def _kind(answer: str | Sequence[str]) -> str:
    return "answer" if answer else _NOTHING


def _per_group(questions: Sequence[ContextQuestion], f1_Q: Floats, exact_Q: Floats) -> dict[str, dict[str, float]]:
    """Return the figures of the questions with an answer, and of those without."""
    kinds = np.array([_kind(question.texts) for question in questions])
    return {
        kind: {
            "f1": float(f1_Q[kinds == kind].mean()),
            "exact_match": float(exact_Q[kinds == kind].mean()),
            "num_questions": int((kinds == kind).sum()),
        }
        for kind in sorted(set(kinds.tolist()))
    }
