"""`Question`: one inference job, run either by a library call or by the workers of a server."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from clozeline.inference.errors import NotANumberError
from clozeline.inference.tokenization import TokenizedText

Answer = TypeVar("Answer", covariant=True)
Rows = npt.NDArray[np.float32]
"""Part of a graph's output for one text, such as `embedding_H`, `logits_C`, or `logits_MV` of its masks."""


@dataclass(frozen=True, slots=True)
class Question(Generic[Answer]):
    """Tokenized texts, the output of the graph to compute for them, and the function that reads answers from it."""

    texts: Sequence[TokenizedText]
    output: str
    read: Callable[[int, Rows], Answer]
    """Function from the index of a text and its rows to its answer."""

    def answer(self, position: int, rows: Rows) -> Answer:
        """Return the answer to the text with the index `position`.

        Raises:
            NotANumberError: the rows contain NaN or infinity.
        """
        if not np.isfinite(rows).all():
            raise NotANumberError(
                f"{int((~np.isfinite(rows)).sum()):,} of {rows.size:,} values of {self.output!r} are not finite",
                do="serve another version (`clozeline rollback` returns to the previous one) or another precision",
            )
        return self.read(position, rows)


AnyQuestion = Question[Any]
