"""What is asked of a model, apart from who runs it: a call of the library, or the workers of a server."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from clozeline.inference.errors import NotANumberError
from clozeline.inference.tokenization import TokenizedText

Answer = TypeVar("Answer", covariant=True)
Rows = npt.NDArray[np.float32]
"""The part of a graph's output that belongs to one text: `embedding_H`, `logits_C`, or `logits_MV` of its masks."""


@dataclass(frozen=True, slots=True)
class Question(Generic[Answer]):
    """Texts as the model reads them, which output of its graph answers, and how to read that."""

    texts: Sequence[TokenizedText]
    output: str
    read: Callable[[int, Rows], Answer]
    """From the position of a text and its rows to its answer."""

    def answer(self, position: int, rows: Rows) -> Answer:
        """The answer to the text at `position`.

        Raises:
            NotANumberError: the graph gave something else than finite numbers.
        """
        if not np.isfinite(rows).all():
            raise NotANumberError(
                "the model gave no finite numbers for a text",
                given=f"{int((~np.isfinite(rows)).sum()):,} of {rows.size:,} values of {self.output!r} are not finite",
                expected="finite numbers",
                do="serve another version or precision of the model; clozeline rollback goes back to the one before",
            )
        return self.read(position, rows)


AnyQuestion = Question[Any]
