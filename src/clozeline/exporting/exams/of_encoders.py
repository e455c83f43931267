"""Exams of encoders: predict hidden or next tokens, or match the two halves of a text.

Shapes: A answers, P predicted tokens of a text, T texts, V vocabulary.
"""

from collections.abc import Iterable, Mapping

import numpy as np

from clozeline.artifacts.export.evidence import Measured
from clozeline.exporting.answers import UNKNOWN, Answers, answers, beginnings, embeddings, halves, hide, named_first
from clozeline.exporting.exams.exam import Exam, Places, different, nothing_to_ask
from clozeline.exporting.ratios import per_text, ratio, share
from clozeline.exporting.sample import Sample
from clozeline.inference.batching import Batch
from clozeline.inference.completer import Completer
from clozeline.inference.encoder import Encoder
from clozeline.inference.language_model import TOP
from clozeline.inference.open_model import OpenModel


class TokensExam(Exam):
    """Exam of predicted tokens. Its answers are the tokens that the graph serves as `TOP`, not the argmax of logits."""

    def answers(self, model: OpenModel, grouped: Iterable[Batch]) -> Answers:
        """Return the answers as in serving: a request for tokens alone computes fewer positions than for embeddings."""
        batches = list(grouped)
        return Answers(answers(model, batches, named_first, TOP), embeddings(model, batches))

    def quality(self, model: OpenModel, given: Answers) -> Mapping[str, Measured]:
        is_known_A = self.true_A != UNKNOWN
        right_A = (given.top1_A == self.true_A)[is_known_A]
        return {"perplexity": self._perplexity(model), "top1": share(right_A, self.text_A[is_known_A])}

    def _perplexity(self, model: OpenModel) -> Measured:
        """Return exp of the mean loss of the predicted tokens; the interval is that of the mean over texts."""
        loss_A = np.zeros(len(self.true_A))
        output = model.main_output
        for batch, (values,) in model.run_batches(model.batches(self.texts), output):
            for position, logits in zip(batch.positions, model.split(batch, output, values), strict=True):
                asked = self.asked(position)
                scores_PV = np.atleast_2d(logits).astype(np.float64)
                highest_P = scores_PV.max(axis=1)
                total_P = highest_P + np.log(np.exp(scores_PV - highest_P[:, None]).sum(axis=1))
                loss_A[asked] = total_P - scores_PV[np.arange(len(asked)), self.true_A[asked]]
        is_known_A = self.true_A != UNKNOWN
        num_T = per_text(is_known_A, self.text_A)
        loss_T = np.bincount(self.text_A[is_known_A], weights=loss_A[is_known_A], minlength=len(num_T))
        loss = ratio(loss_T, num_T, int(num_T.sum()))
        ends = {name: float(np.exp(getattr(loss, name))) for name in ("value", "low", "high")}
        return loss.model_copy(update=ends)

    def asked(self, position: int) -> Places:
        """Return the answers that `texts[position]` gives."""
        return np.flatnonzero(self.text_A == position)


class NextTokensExam(TokensExam):
    """Exam of the tokens after several beginnings of each text: `texts` are the beginnings, with one answer each."""

    def asked(self, position: int) -> Places:
        return np.array([position])


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
    return TokensExam(texts=[it.text for it in hidden], text_A=text_A, true_A=true_A, metric="masked-LM accuracy")


def next_tokens_exam(model: Completer, sample: Sample) -> Exam:
    """Return the exam of predicting a few tokens of each text, each from the tokens before it.

    Raises:
        DataError: no text has a token.
    """
    read = model.tokenize(sample.texts, truncate=True)
    read = [read[place] for place in different(read, sample)]
    begun = [beginnings(text, model.manifest.special_tokens.ids) for text in read]
    asked = [one for of_text in begun for one in of_text]
    if not asked:
        raise nothing_to_ask(f"{len(read)} texts without a token, such as {sample.texts[0][:60]!r}")
    return NextTokensExam(
        texts=[text for text, _ in asked],
        text_A=np.repeat(np.arange(len(begun)), [len(of_text) for of_text in begun]),
        true_A=np.array([token_id for _, token_id in asked], dtype=np.int64),
        metric="next-token accuracy",
    )


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
