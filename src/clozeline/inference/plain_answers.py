"""Answers of a package as plain records, one for each text, as MLflow's models of every kind return them."""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from clozeline.artifacts.export.manifest import Manifest
from clozeline.errors import DataError
from clozeline.inference.answerer import Answerer
from clozeline.inference.classifier import Classifier
from clozeline.inference.completer import Completer
from clozeline.inference.embedder import Embedder
from clozeline.inference.encoder import Encoder
from clozeline.inference.spans import SpanSearch
from clozeline.inference.tagger import Tagger

Records = list[dict[str, Any]]
PlainAnswers = Callable[[Any, Sequence[str], int, bool], Records]
"""Function of a model of the row's class, texts, the number of answers for each (`top_k`), and whether to cut long
texts (`truncate`).
"""


def embeddings(model: Embedder, texts: Sequence[str], top_k: int, truncate: bool) -> Records:
    return [{"embedding": embedding_H.tolist()} for embedding_H in model.embed(texts, truncate=truncate)]


def embeddings_and_masks(model: Encoder, texts: Sequence[str], top_k: int, truncate: bool) -> Records:
    """Embed every text and fill its masks; a text that loses a mask to truncation is only embedded."""
    embedded = embeddings(model, texts, top_k, truncate)  # first, so that errors number the texts as given
    own = model.with_own_masks(texts)
    places = model.with_masks(own, truncate=truncate)
    filled = model.fill([own[place] for place in places], top_k=top_k, truncate=truncate)
    masks = dict(zip(places, filled, strict=True))
    return [
        {**record, "masks": [[asdict(word) for word in words] for words in masks.get(place, ())]}
        for place, record in enumerate(embedded)
    ]


def embeddings_and_completions(model: Completer, texts: Sequence[str], top_k: int, truncate: bool) -> Records:
    """Embed every text and continue it greedily; `top_k` has no effect."""
    embedded = embeddings(model, texts, top_k, truncate)
    completions = model.complete(texts, truncate=truncate)
    return [{**record, "completion": asdict(one)} for record, one in zip(embedded, completions, strict=True)]


def labels(model: Classifier, texts: Sequence[str], top_k: int, truncate: bool) -> Records:
    given = _pairs(texts, "text", "text_pair") if model.manifest.reads_pairs else texts
    found = model.classify(given, top_k=top_k, truncate=truncate)
    return [{"labels": [asdict(label) for label in of_text]} for of_text in found]


def entities(model: Tagger, texts: Sequence[str], top_k: int, truncate: bool) -> Records:
    """Return all entities of each text; `top_k` and `truncate` have no effect."""
    return [{"entities": [asdict(entity) for entity in found]} for found in model.tag(texts)]


def answers(model: Answerer, texts: Sequence[str], top_k: int, truncate: bool) -> Records:
    """Return answers from the whole context; `truncate` has no effect."""
    found = model.ask(_pairs(texts, "question", "context"), search=SpanSearch(top_k=top_k))
    return [{"answers": [asdict(answer) for answer in of_question]} for of_question in found]


def example_texts(manifest: Manifest) -> list[str]:
    if manifest.reads_pairs:
        return [json.dumps({"text": "What is returned?", "text_pair": "It returns a value."})] * 2
    return [f"returns {manifest.special_tokens.mask_token or 'a value'}", "text"]


def example_questions(manifest: Manifest) -> list[str]:
    return [json.dumps({"question": "What is returned?", "context": "It returns a value."})] * 2


def _pairs(texts: Sequence[str], first: str, second: str) -> list[tuple[str, str]]:
    return [_pair(number, text, first, second) for number, text in enumerate(texts)]


def _pair(number: int, text: str, first: str, second: str) -> tuple[str, str]:
    try:
        asked = json.loads(text)
        return str(asked[first]), str(asked[second])
    except (json.JSONDecodeError, KeyError, TypeError) as error:
        raise DataError(
            f"text {number} is not a JSON object with `{first}` and `{second}`",
            given=text[:60],
            expected=f'JSON such as {{"{first}": "…", "{second}": "…"}}',
            do=f"send each {first} and its {second} as one JSON object in a string",
        ) from error
