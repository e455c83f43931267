"""Where the texts of a request stand in its body: inference numbers them from 0, and a client knows its own fields."""

from collections.abc import Callable, Mapping
from types import MappingProxyType


def _listed(number: int) -> str:
    return f"inputs[{number}]"


def _alone(number: int) -> str:
    return "inputs"


def _asked(number: int) -> str:
    return "inputs.question"  # a context of any length is read in windows


def _ranked(number: int) -> str:
    return f"texts[{number}]"


def _compared(number: int) -> str:
    return f"inputs.sentences[{number - 1}]" if number else "inputs.source_sentence"


def _openai(number: int) -> str:
    return f"input[{number}]"


def _tensor(number: int) -> str:
    return f"inputs[0].data[{number}]"


def _row(number: int) -> str:
    return f"rows[{number}]"


_PLACES: Mapping[str, Callable[[int], str]] = MappingProxyType(
    {
        "/similarity": _compared,
        "/pipeline/sentence-similarity": _compared,
        "/rerank": _ranked,
        "/v1/embeddings": _openai,
        "/invocations": _row,
        "/v2/models/{model}/infer": _tensor,
        "/v2/models/{model}/versions/{version}/infer": _tensor,
        "/answer": _asked,
        "/pipeline/question-answering": _asked,
        "/zero-shot": _alone,
        "/pipeline/zero-shot-classification": _alone,
        "/pipeline/zero-shot-classification-lists": _alone,
    }
)
"""By route; every other route has a text in `inputs`, or a list of them."""


def place_of(number: int, route: str) -> str:
    """The field of the text of this number, of a request to `route`; of MLflow's shapes, which differ, the row."""
    return _PLACES.get(route, _listed)(number)
