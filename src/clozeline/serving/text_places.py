"""Where the texts of a request stand in its body: inference numbers them from 0, and a client knows its own fields."""

from collections.abc import Callable, Mapping
from types import MappingProxyType


def _listed(number: int) -> str:
    return f"inputs[{number}]"


def _alone(number: int) -> str:
    return "inputs"


def _ranked(number: int) -> str:
    return f"texts[{number}]"


def _compared(number: int) -> str:
    return f"inputs.sentences[{number - 1}]" if number else "inputs.source_sentence"


def _openai(number: int) -> str:
    return f"input[{number}]"


def _tensor(number: int) -> str:
    return f"inputs[0].data[{number}]"


def _row(number: int) -> str:
    return f"row {number}, counted from 0,"


_PLACES: Mapping[str, Callable[[int], str]] = MappingProxyType(
    {
        "/similarity": _compared,
        "/pipeline/sentence-similarity": _compared,
        "/rerank": _ranked,
        "/v1/embeddings": _openai,
        "/invocations": _row,
        "/v2/models/{model}/infer": _tensor,
        "/v2/models/{model}/versions/{version}/infer": _tensor,
        "/answer": _alone,
        "/pipeline/question-answering": _alone,
        "/zero-shot": _alone,
        "/pipeline/zero-shot-classification": _alone,
        "/pipeline/zero-shot-classification-lists": _alone,
    }
)
"""By route; every other route has a text in `inputs`, or a list of them."""


def place_of(number: int, route: str) -> str:
    """The field of the text of this number, of a request to `route`; in MLflow's shapes, its row."""
    return _PLACES.get(route, _listed)(number)
