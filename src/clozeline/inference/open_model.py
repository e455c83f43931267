"""What every task does with an open package: tokenize, batch, run the graph."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from clozeline.artifacts.manifest import Manifest
from clozeline.inference.batching import Batch, batches, padded
from clozeline.inference.question import AnyQuestion, Question, Rows
from clozeline.inference.session import GraphSession
from clozeline.inference.tokenization import Given, TextTokenizer, TokenizedText

Answer = TypeVar("Answer")


class OpenModel(ABC):
    """Tokenizer and graph of one package. Safe to call from many threads: nothing changes after construction."""

    def __init__(
        self, manifest: Manifest, tokenizer: TextTokenizer, session: GraphSession, *, batch_tokens: int
    ) -> None:
        self.manifest = manifest
        self._tokenizer = tokenizer
        self._session = session
        self._batch_tokens = batch_tokens

    def count_tokens(self, texts: Sequence[str]) -> list[int]:
        """Tokens of each whole text, special tokens among them."""
        return self._tokenizer.count(texts)

    @property
    def main_output(self) -> str:
        """The output that says most: those after it are made of the same."""
        return self.manifest.outputs[0].name

    @property
    def tokenizer(self) -> TextTokenizer:
        return self._tokenizer

    def tokenize(self, texts: Sequence[Given], *, truncate: bool = False) -> list[TokenizedText]:
        """Texts, or pairs of them, as the model reads them.

        Raises:
            TextError: a text is longer than `manifest.max_length` tokens and `truncate` is not set,
                or is no valid Unicode.
        """
        return self._tokenizer.tokenize(texts, truncate=truncate)

    def run(self, texts: Sequence[TokenizedText], output: str) -> Iterator[tuple[Batch, npt.NDArray[np.float32]]]:
        """Each batch of `texts` with the graph's output called `output`, as soon as it is there."""
        for batch, (values,) in self.run_batches(self.batches(texts), output):
            yield batch, values

    def batches(self, texts: Sequence[TokenizedText]) -> Iterator[Batch]:
        """`texts` as they go through the graph together."""
        return batches(texts, pad_id=self.manifest.special_tokens.pad_id, batch_tokens=self._batch_tokens)

    def run_batches(
        self, grouped: Iterable[Batch], *outputs: str
    ) -> Iterator[tuple[Batch, list[npt.NDArray[np.float32]]]]:
        """Each batch of `grouped` with the graph's outputs of these names; `split` parts them by text."""
        for batch in grouped:
            yield batch, self._run(batch, *outputs)

    def rows(self, texts: Sequence[TokenizedText], output: str) -> list[Rows]:
        """Run `texts` together, as one batch: for each its part of the output called `output`, in their order."""
        batch = padded(texts, range(len(texts)), self.manifest.special_tokens.pad_id)
        (values,) = self._run(batch, output)
        return self.split(batch, output, values)

    def answers(self, question: Question[Answer]) -> list[Answer]:
        """The answer to each text of `question`, in their order."""
        found: dict[int, Answer] = {}
        for batch, values in self.run(question.texts, question.output):
            for position, rows in zip(batch.positions, self.split(batch, question.output, values), strict=True):
                found[position] = question.answer(position, rows)
        return [found[position] for position in range(len(question.texts))]

    def count_unknown(self, text: TokenizedText) -> int:
        """Tokens of `text` that stand for what the vocabulary does not have."""
        unknown_id = self._tokenizer.unknown_id
        return 0 if unknown_id is None else int(np.count_nonzero(text.ids_L == unknown_id))

    def split(self, batch: Batch, output: str, values: npt.NDArray[np.float32]) -> list[Rows]:
        """The rows of each text of the batch: one for each text, unless a subclass says otherwise."""
        return list(values)

    @abstractmethod
    def usual(self, texts: Sequence[str]) -> AnyQuestion:
        """What a model of this task is asked about `texts` if nothing else is said, long ones cut."""

    def _run(self, batch: Batch, *outputs: str) -> list[npt.NDArray[np.float32]]:
        return self._session.run(batch, *outputs)


class PerToken(OpenModel):
    """A model that says something of each token: what it says of padding is cut off."""

    def split(self, batch: Batch, output: str, values: npt.NDArray[np.float32]) -> list[Rows]:
        lengths_B = batch.attention_mask_BL.sum(axis=1).tolist()
        return [of_text[:length] for of_text, length in zip(values, lengths_B, strict=True)]
