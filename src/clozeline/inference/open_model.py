"""What every task does with an open package: tokenize, batch, run the graph."""

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from clozeline.inference.batching import Batch, batches
from clozeline.inference.manifest import Manifest
from clozeline.inference.session import GraphSession
from clozeline.inference.tokenization import TextTokenizer, TokenizedText


class OpenModel:
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

    def tokenize(self, texts: Sequence[str], *, truncate: bool = False) -> list[TokenizedText]:
        """Texts as the model reads them.

        Raises:
            TextError: a text is longer than `manifest.max_length` tokens and `truncate` is not set,
                or is no valid Unicode.
        """
        return self._tokenizer.tokenize(texts, truncate=truncate)

    def run(self, texts: Sequence[TokenizedText], output: str) -> Iterator[tuple[Batch, npt.NDArray[np.float32]]]:
        """Each batch of `texts` with the graph's output called `output`, as soon as it is there."""
        pad_id = self.manifest.special_tokens.pad_id
        for batch in batches(texts, pad_id=pad_id, batch_tokens=self._batch_tokens):
            yield batch, self._session.run(batch, output)
