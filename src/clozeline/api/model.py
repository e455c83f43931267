"""An exported model, asked from Python.

Shapes: T texts, H hidden.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from types import MappingProxyType
from typing import Any, Final, TypeVar

import numpy as np
import numpy.typing as npt

from clozeline.artifacts.export.manifest import Manifest, Precision
from clozeline.errors import ParamsError
from clozeline.inference.answerer import Answer, Answerer
from clozeline.inference.classifier import Classifier, LabelScore
from clozeline.inference.completer import Completer, Completion, Decoding
from clozeline.inference.embedder import Embedder
from clozeline.inference.encoder import Encoder, Filled
from clozeline.inference.entities import Tagged
from clozeline.inference.open_model import OpenModel
from clozeline.inference.package import load as open_package
from clozeline.inference.spans import SpanSearch
from clozeline.inference.tagger import Tagger
from clozeline.inference.tokenization import Given
from clozeline.machine.cores import available_cores
from clozeline.serving.models.sources import ModelSource, fetched

Kind = TypeVar("Kind", bound=OpenModel)
Texts = str | Sequence[str]
_ASKED_BY: Final[Mapping[str, type[OpenModel]]] = MappingProxyType(
    {
        "fill": Encoder,
        "complete": Completer,
        "embed": Embedder,
        "tokens": Embedder,
        "classify": Classifier,
        "tag": Tagger,
        "answer": Answerer,
    }
)
"""Method of `Model` → the class of models that it asks."""


@dataclass(frozen=True)
class Model:
    """An open package. Each method takes one text or several, and returns a list with the answer to each.

    A method that this kind of model cannot answer raises ParamsError, which names those that it can.
    """

    opened: OpenModel

    @property
    def manifest(self) -> Manifest:
        """What the package says about itself: task, labels, longest text, INT8 scheme."""
        return self.opened.manifest

    def fill(
        self, texts: Texts, *, top_k: int = 5, targets: Sequence[str] | None = None, truncate: bool = False
    ) -> list[list[list[Filled]]]:
        """Return the likeliest tokens for each mask of each text, best first; `[MASK]` stands for the model's own mask.

        Raises:
            TextError: a text has no mask, or is too long.
        """
        encoder = self._as(Encoder, "fill")
        return encoder.fill(encoder.with_own_masks(_several(texts)), top_k=top_k, targets=targets, truncate=truncate)

    def complete(self, texts: Texts, *, truncate: bool = False, **decoding: Any) -> list[Completion]:
        """Return the continuation of each text. `decoding`: fields of `Decoding`, such as `max_tokens` and `seed`."""
        return self._as(Completer, "complete").complete(_several(texts), Decoding(**decoding), truncate=truncate)

    def embed(self, texts: Texts, *, truncate: bool = False) -> npt.NDArray[np.float32]:
        """Return a vector of length 1 for each text, [T, H].

        Raises:
            TextTooLongError: a text is longer than the model reads, and `truncate` is not set.
        """
        return self._as(Embedder, "embed").embed(_several(texts), truncate=truncate)

    def tokens(self, texts: Texts, *, truncate: bool = False) -> list[npt.NDArray[np.float32]]:
        """Return the last hidden states of each text, [tokens, H], special tokens included.

        Raises:
            TextTooLongError: a text is longer than the model reads, and `truncate` is not set.
        """
        return self._as(Embedder, "tokens").tokens(_several(texts), truncate=truncate)

    def classify(
        self, texts: str | Sequence[Given], *, top_k: int = 1, truncate: bool = False
    ) -> list[list[LabelScore]]:
        """Return the likeliest labels of each text, or pair of texts, best first.

        Raises:
            TextTooLongError: a text is longer than the model reads, and `truncate` is not set.
        """
        given = [texts] if isinstance(texts, str) else list(texts)
        return self._as(Classifier, "classify").classify(given, top_k=top_k, truncate=truncate)

    def tag(self, texts: Texts) -> list[Tagged]:
        """Return the entities of each text in order; texts may have any length."""
        return self._as(Tagger, "tag").tag(_several(texts))

    def answer(self, pairs: tuple[str, str] | Sequence[tuple[str, str]], *, top_k: int = 1) -> list[list[Answer]]:
        """Return the best answers to each pair of a question and its context, best first."""
        given = [pairs] if isinstance(pairs, tuple) and isinstance(pairs[0], str) else pairs
        return self._as(Answerer, "answer").ask(given, search=SpanSearch(top_k=top_k))  # type: ignore[arg-type]  # one pair, or several

    def _as(self, kind: type[Kind], asked: str) -> Kind:
        if isinstance(self.opened, kind):
            return self.opened
        able = [f"`{name}`" for name, one in _ASKED_BY.items() if isinstance(self.opened, one)]
        raise ParamsError(
            f"this model, of the task {self.manifest.task}, cannot `{asked}`",
            do=f"ask it by {' or '.join(able)}, or load a model that can `{asked}`",
        )


def load(place: str | PathLike[str], *, precision: Precision | None = None) -> Model:
    """Open a package: a folder that `export` returned, one of `dist/`, or `models:/NAME@ALIAS` of the registry.

    Args:
        place: the folder or the URI.
        precision: int8 or fp32; None: INT8, if the export proved it and the release did not choose fp32.

    Raises:
        ArtifactError: there is no such model, or its files are not those of its manifest.
        TransientError: the registry does not answer.
    """
    found = fetched(ModelSource.parse(str(place)))
    chosen = precision or (found.version.served if found.version else None)
    return Model(open_package(found.folder, precision=chosen, num_threads=available_cores()))


def _several(texts: Texts) -> list[str]:
    return [texts] if isinstance(texts, str) else list(texts)
