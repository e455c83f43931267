"""Operations of every kind of model on an open package: tokenize, batch, run the graph."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from clozeline.artifacts.export.manifest import Manifest
from clozeline.inference.batching import Batch, batches, padded
from clozeline.inference.question import AnyQuestion, Question, Rows
from clozeline.inference.session import GraphSession
from clozeline.inference.tokenization import Given, TextTokenizer, TokenizedText

Answer = TypeVar("Answer")
Records = list[dict[str, Any]]


class OpenModel(ABC):
    """Tokenizer and graph of one package. It is thread-safe, because its state never changes after construction."""

    def __init__(
        self, manifest: Manifest, tokenizer: TextTokenizer, session: GraphSession, *, batch_tokens: int
    ) -> None:
        self.manifest = manifest
        self.tokenizer = tokenizer
        self._session = session
        self._batch_tokens = batch_tokens

    @property
    def main_output(self) -> str:
        """Name of the output with the most information, from which answers are read."""
        return self.manifest.outputs[0].name

    def tokenize(self, texts: Sequence[Given], *, truncate: bool = False) -> list[TokenizedText]:
        """Tokenize texts or pairs of texts.

        Raises:
            TextError: a text is longer than `manifest.max_length` tokens and `truncate` is not set,
                or is not valid Unicode.
        """
        return self.tokenizer.tokenize(texts, truncate=truncate)

    def run(self, texts: Sequence[TokenizedText], output: str) -> Iterator[tuple[Batch, npt.NDArray[np.float32]]]:
        """Yield each batch of `texts` with the graph's output `output` as soon as it is computed."""
        for batch, (values,) in self.run_batches(self.batches(texts), output):
            yield batch, values

    def batches(self, texts: Sequence[TokenizedText]) -> Iterator[Batch]:
        """Yield `texts` in the batches that run through the graph."""
        return batches(texts, pad_id=self.manifest.special_tokens.pad_id, batch_tokens=self._batch_tokens)

    def run_batches(
        self, grouped: Iterable[Batch], *outputs: str
    ) -> Iterator[tuple[Batch, list[npt.NDArray[np.float32]]]]:
        """Yield each batch of `grouped` with the named outputs of the graph; `split` divides them by text."""
        for batch in grouped:
            yield batch, self._run(batch, *outputs)

    def rows(self, texts: Sequence[TokenizedText], output: str) -> list[Rows]:
        """Run `texts` as one batch and return each text's part of the output `output`, in order."""
        batch = padded(texts, range(len(texts)), self.manifest.special_tokens.pad_id)
        (values,) = self._run(batch, output)
        return self.split(batch, output, values)

    def answers(self, question: Question[Answer]) -> list[Answer]:
        """Return the answer to each text of `question`, in order."""
        found: dict[int, Answer] = {}
        for batch, values in self.run(question.texts, question.output):
            for position, rows in zip(batch.positions, self.split(batch, question.output, values), strict=True):
                found[position] = question.answer(position, rows)
        return [found[position] for position in range(len(question.texts))]

    def count_unknown(self, text: TokenizedText) -> int:
        """Count the unknown tokens of `text`."""
        unknown_id = self.tokenizer.unknown_id
        return 0 if unknown_id is None else int(np.count_nonzero(text.ids_L == unknown_id))

    def split(self, batch: Batch, output: str, values: npt.NDArray[np.float32]) -> list[Rows]:
        """Return each text's part of an output: here one row of `values` per text."""
        return list(values)

    @abstractmethod
    def usual(self, texts: Sequence[str]) -> AnyQuestion:
        """Return the default question of this kind of model about `texts`; long texts are truncated or split."""

    @abstractmethod
    def records(self, texts: Sequence[str], *, top_k: int, truncate: bool) -> Records:
        """Return the answer to each text as a plain record, as MLflow's models of every kind do.

        `top_k` answers for each text; `truncate`: cut long texts. A kind of model may ignore either.
        """

    @classmethod
    def examples(cls, manifest: Manifest) -> list[str]:
        """Return texts that `records` of the model with this manifest answers."""
        return [f"returns {manifest.special_tokens.mask_token or 'a value'}", "text"]

    def _run(self, batch: Batch, *outputs: str) -> list[npt.NDArray[np.float32]]:
        return self._session.run(batch, *outputs)


class PerToken(OpenModel):
    """A model with an output for each token; the outputs at padding are cut off."""

    def split(self, batch: Batch, output: str, values: npt.NDArray[np.float32]) -> list[Rows]:
        return without_padding(batch, values)


def without_padding(batch: Batch, values: npt.NDArray[np.float32]) -> list[Rows]:
    """Return each text's part of an output for each token."""
    lengths_B = batch.attention_mask_BL.sum(axis=1).tolist()
    return [of_text[:length] for of_text, length in zip(values, lengths_B, strict=True)]
