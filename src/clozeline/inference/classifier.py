"""A sequence classifier, answering: labels of a text with their probabilities.

B texts of a batch, C classes.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from clozeline.inference.batching import BATCH_TOKENS, batches
from clozeline.inference.manifest import Manifest
from clozeline.inference.scores import check_top_k, softmax, top
from clozeline.inference.session import GraphSession
from clozeline.inference.tokenization import TextTokenizer


@dataclass(frozen=True, slots=True)
class LabelScore:
    """One label of a text; the fields are those of Hugging Face's text-classification task."""

    label: str
    score: float
    """Probability, 0-1."""


class Classifier:
    """Puts one label on each text. Safe to call from many threads."""

    def __init__(
        self, manifest: Manifest, tokenizer: TextTokenizer, session: GraphSession, *, batch_tokens: int = BATCH_TOKENS
    ) -> None:
        self.manifest = manifest
        self._tokenizer = tokenizer
        self._session = session
        self._batch_tokens = batch_tokens

    def count_tokens(self, texts: Sequence[str]) -> list[int]:
        """Tokens of each whole text, special tokens among them."""
        return self._tokenizer.count(texts)

    def classify(self, texts: Sequence[str], *, top_k: int = 1, truncate: bool = False) -> list[list[LabelScore]]:
        """For each text, the `top_k` likeliest labels (all, if there are fewer), best first.

        Raises:
            DataError: a text is longer than `manifest.max_length` tokens and `truncate` is not set,
                or `top_k` is below 1.
        """
        check_top_k(top_k)
        tokenized = self._tokenizer.tokenize(texts, truncate=truncate)
        answers: list[list[LabelScore]] = [[] for _ in texts]
        pad_id = self.manifest.special_tokens.pad_id
        for batch in batches(tokenized, pad_id=pad_id, batch_tokens=self._batch_tokens):
            scores_BC = softmax(self._session.run(batch, "logits"))
            for position, scores_C in zip(batch.positions, scores_BC, strict=True):
                answers[position] = [
                    LabelScore(self.manifest.labels[place], float(scores_C[place])) for place in top(scores_C, top_k)
                ]
        return answers
