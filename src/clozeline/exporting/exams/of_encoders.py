"""Exams of encoders: predict hidden tokens, or match the two halves of a text.

Shapes: A answers, T texts.
"""

from collections.abc import Iterable, Mapping

import numpy as np

from clozeline.artifacts.export.evidence import Measured
from clozeline.exporting.answers import UNKNOWN, Answers, answers, embeddings, halves, hide, named_first
from clozeline.exporting.exams.exam import Exam, different, nothing_to_ask
from clozeline.exporting.ratios import ratio, share
from clozeline.exporting.sample import Sample
from clozeline.inference.batching import Batch
from clozeline.inference.encoder import TOP, Encoder
from clozeline.inference.open_model import OpenModel


class MasksExam(Exam):
    """Exam of masked tokens. Its answers are the tokens that the graph serves as `TOP`, not the argmax of logits."""

    def answers(self, model: OpenModel, grouped: Iterable[Batch]) -> Answers:
        """Return the answers as in serving: a request for tokens alone computes fewer positions than for embeddings."""
        batches = list(grouped)
        return Answers(answers(model, batches, named_first, TOP), embeddings(model, batches))

    def quality(self, model: OpenModel, given: Answers) -> Mapping[str, Measured]:
        is_known_A = self.true_A != UNKNOWN
        right_A = (given.top1_A == self.true_A)[is_known_A]
        return {"perplexity": self._perplexity(model), "top1": share(right_A, self.text_A[is_known_A])}

    def _perplexity(self, model: OpenModel) -> Measured:
        """Return exp of the mean loss of the masked tokens; the interval is that of the mean over texts."""
        loss_T, num_T = np.zeros(len(self.texts)), np.zeros(len(self.texts))
        output = model.main_output
        for batch, (values,) in model.run_batches(model.batches(self.texts), output):
            for position, logits_MV in zip(batch.positions, model.split(batch, output, values), strict=True):
                true_M = self.true_A[self.text_A == position]
                known = np.flatnonzero(true_M != UNKNOWN)
                scores_MV = logits_MV[known].astype(np.float64)
                highest_M = scores_MV.max(axis=1)
                total_M = highest_M + np.log(np.exp(scores_MV - highest_M[:, None]).sum(axis=1))
                loss_T[position] = (total_M - scores_MV[np.arange(len(known)), true_M[known]]).sum()
                num_T[position] = len(known)
        loss = ratio(loss_T, num_T, int(num_T.sum()))
        ends = {name: float(np.exp(getattr(loss, name))) for name in ("value", "low", "high")}
        return loss.model_copy(update=ends)


class HalvesExam(Exam):
    """Exam of the texts of `halves`. An answer is the second half nearest to a first half."""

    def answers(self, model: OpenModel, grouped: Iterable[Batch]) -> Answers:
        embeddings_TH = embeddings(model, grouped)
        return Answers((embeddings_TH[::2] @ embeddings_TH[1::2].T).argmax(axis=1), embeddings_TH)


def masks_exam(model: Encoder, sample: Sample) -> Exam:
    """Return the exam of predicting tokens that a fixed rule hides.

    Raises:
        DataError: no text has a token.
    """
    read = model.tokenize(sample.texts, truncate=True)
    hidden = [hide(read[place], model) for place in different(read, sample)]
    text_A = np.repeat(np.arange(len(hidden)), [len(text.true_ids_M) for text in hidden])
    if len(text_A) == 0:
        given = f"{len(read)} texts without a token that can be masked, such as {sample.texts[0][:60]!r}"
        raise nothing_to_ask(given)
    true_A = np.concatenate([text.true_ids_M for text in hidden])
    return MasksExam(texts=[it.text for it in hidden], text_A=text_A, true_A=true_A, metric="masked-LM accuracy")


def halves_exam(model: OpenModel, sample: Sample) -> Exam:
    """Return the exam in which each first half has to find its second half.

    Second halves with equal tokens are used once, because rounding would decide which is nearer.

    Raises:
        DataError: no text has two tokens.
    """
    every = halves(model.tokenize(sample.texts, truncate=True), model.manifest.special_tokens.ids)
    if not every:
        raise nothing_to_ask("no text with at least two tokens")
    texts = [half for place in different(every[1::2], sample) for half in every[2 * place : 2 * place + 2]]
    number_A = np.arange(len(texts) // 2)
    return HalvesExam(texts=texts, text_A=number_A, true_A=number_A, metric="halves found")
