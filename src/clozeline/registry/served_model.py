"""A package of `dist/` as an MLflow model: this file itself is what MLflow stores and runs, so nothing is pickled.

`mlflow.pyfunc.load_model("models:/clozeline-encoder@champion").predict(["Returns a [MASK]."])` gives one record for
each text: of an encoder its `embedding`, and for each mask the likeliest words (if it names words); of a classifier its
`labels`; of a tagger its `entities`. A question answerer takes JSON, `{"question": …, "context": …}` in each text, and
gives its `answers`; a classifier of pairs takes `{"text": …, "text_pair": …}`.
"""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from mlflow.models import set_model
from mlflow.pyfunc.model import PythonModel, PythonModelContext

from clozeline.errors import DataError
from clozeline.inference.answerer import Answerer
from clozeline.inference.classifier import Classifier
from clozeline.inference.embedder import Embedder
from clozeline.inference.encoder import Encoder
from clozeline.inference.package import load
from clozeline.inference.spans import SpanSearch
from clozeline.inference.tagger import Tagger
from clozeline.registry import PACKAGE


class ServedModel(PythonModel):
    """Answers with the graph that the manifest says is served.

    `params` may set `top_k` (answers for each mask or text) and `truncate`.
    """

    def load_context(self, context: PythonModelContext) -> None:
        """Open the package; an `ArtifactError` names the file that is missing or damaged."""
        self._model = load(Path(context.artifacts[PACKAGE]))

    def predict(
        self, context: PythonModelContext, model_input: list[str], params: dict[str, Any] | None = None
    ) -> list[object]:
        """One record for each text of `model_input`.

        Not typed further: MLflow reads the annotation, and warns of every `Any` in it.
        """
        options = {"top_k": 5, "truncate": False} | (params or {})
        if isinstance(self._model, Tagger):
            return [{"entities": [asdict(entity) for entity in found]} for found in self._model.tag(model_input)]
        if isinstance(self._model, Answerer):
            return _answered(self._model, model_input, options["top_k"])
        if isinstance(self._model, Classifier):
            return _classified(self._model, model_input, **options)
        if isinstance(self._model, Encoder):
            return _embedded_and_filled(self._model, model_input, **options)
        assert isinstance(self._model, Embedder), "there are no other kinds"
        embeddings_TH = self._model.embed(model_input, truncate=options["truncate"])
        return [{"embedding": embedding_H.tolist()} for embedding_H in embeddings_TH]


def _classified(model: Classifier, texts: list[str], top_k: int, truncate: bool) -> list[object]:
    given = _pairs(texts, "text", "text_pair") if model.manifest.reads_pairs else texts
    answers = model.classify(given, top_k=top_k, truncate=truncate)
    return [{"labels": [asdict(label) for label in labels]} for labels in answers]


def _answered(model: Answerer, texts: list[str], top_k: int) -> list[object]:
    found = model.ask(_pairs(texts, "question", "context"), search=SpanSearch(top_k=top_k))
    return [{"answers": [asdict(answer) for answer in answers]} for answers in found]


def _pairs(texts: list[str], first: str, second: str) -> list[tuple[str, str]]:
    return [_pair(number, text, first, second) for number, text in enumerate(texts)]


def _pair(number: int, text: str, first: str, second: str) -> tuple[str, str]:
    try:
        asked = json.loads(text)
        return str(asked[first]), str(asked[second])
    except (json.JSONDecodeError, KeyError, TypeError) as error:
        raise DataError(
            f"text {number} has no {first} with its {second}",
            given=text[:60],
            expected=f'JSON such as {{"{first}": "…", "{second}": "…"}}',
            do=f"send each {first} with its {second} as one JSON object in a string",
        ) from error


def _embedded_and_filled(model: Encoder, texts: list[str], top_k: int, truncate: bool) -> list[object]:
    """Of a text that is cut before its last mask, none is filled; it is embedded as any other."""
    embeddings_TH = model.embed(texts, truncate=truncate)
    own = model.with_own_masks(texts)
    places = model.with_masks(own, truncate=truncate)
    filled = model.fill([own[place] for place in places], top_k=top_k, truncate=truncate)
    masks = dict(zip(places, filled, strict=True))
    return [
        {
            "embedding": embedding_H.tolist(),
            "masks": [[asdict(word) for word in words] for words in masks.get(place, ())],
        }
        for place, embedding_H in enumerate(embeddings_TH)
    ]


set_model(ServedModel())
