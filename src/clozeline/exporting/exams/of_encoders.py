"""Exams of encoders: predict hidden or next tokens, or match the two halves of a text.

Shapes: A answers, T texts.
"""

import numpy as np

from clozeline.exporting.answers import before_a_token, halves, hide, named_first
from clozeline.exporting.exams.exam import Exam, Places, different, nothing_to_ask
from clozeline.exporting.sample import Sample
from clozeline.inference.completer import Completer
from clozeline.inference.encoder import Encoder
from clozeline.inference.open_model import OpenModel
from clozeline.inference.question import Rows


class TokensExam(Exam):
    """Exam of predicted tokens. Its answers are the tokens that the graph serves as `TOP`, not the argmax of logits."""

    def read(self, position: int, rows: Rows) -> Places:
        return named_first(position, rows)


def masks_exam(model: Encoder, sample: Sample) -> Exam:
    """Return the exam of predicting tokens that a fixed rule hides.

    Raises:
        DataError: no text has a token.
    """
    read = model.tokenize(sample.texts, truncate=True)
    hidden = [hide(read[place], model) for place in different(read)]
    text_A = np.repeat(np.arange(len(hidden)), [len(text.true_ids_M) for text in hidden])
    if len(text_A) == 0:
        given = f"{len(read)} texts without a token that can be masked, such as {sample.texts[0][:60]!r}"
        raise nothing_to_ask(given)
    true_A = np.concatenate([text.true_ids_M for text in hidden])
    return TokensExam(texts=[it.text for it in hidden], text_A=text_A, true_A=true_A, metric="masked-LM accuracy")


def next_tokens_exam(model: Completer, sample: Sample) -> Exam:
    """Return the exam of predicting one token of each text from the tokens before it.

    Raises:
        DataError: no text has a token.
    """
    read = model.tokenize(sample.texts, truncate=True)
    asked = [cut for text in read if (cut := before_a_token(text, model.manifest.special_tokens.ids)) is not None]
    if not asked:
        raise nothing_to_ask(f"{len(read)} texts without a token, such as {sample.texts[0][:60]!r}")
    places = different([text for text, _ in asked])
    return TokensExam(
        texts=[asked[place][0] for place in places],
        text_A=np.arange(len(places)),
        true_A=np.array([asked[place][1] for place in places], dtype=np.int64),
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
    texts = [half for place in different(every[1::2]) for half in every[2 * place : 2 * place + 2]]
    number_A = np.arange(len(texts) // 2)
    return Exam(texts=texts, text_A=number_A, true_A=number_A, metric="halves found")
