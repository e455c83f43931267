"""/openapi.json of one server: what its models answer, with their names, so that every example in it is answered."""

from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from types import MappingProxyType
from typing import Any

from clozeline.inference.answerer import Answerer
from clozeline.inference.encoder import Encoder
from clozeline.inference.open_model import OpenModel
from clozeline.inference.tagger import Tagger
from clozeline.serving.models.catalogue import ANY, TENSORS, Catalogue, routes_of
from clozeline.serving.models.loading import LoadedModel

_VERSION = "/versions/{version}"


def served_document(document: Mapping[str, Any], catalogue: Catalogue) -> dict[str, Any]:
    """`document`, of all routes there are, without those that no model of `catalogue` answers."""
    paths = {path: _served(path, operations, catalogue) for path, operations in document["paths"].items()}
    return {**document, "paths": {path: operations for path, operations in paths.items() if operations}}


def _served(path: str, operations: Mapping[str, Any], catalogue: Catalogue) -> dict[str, Any]:
    """`operations` as they are asked of these models; empty: of none."""
    route = path.replace(_VERSION, "")
    able = _able(catalogue, route)
    if "post" in operations and not able:
        return {}
    told = deepcopy(dict(operations))
    if "post" in told:
        _let_ask(told["post"], route, able)
    (first, *_) = catalogue
    for operation in told.values():
        for parameter in operation.get("parameters", ()):
            if parameter["name"] == "model":
                parameter["schema"]["examples"] = [first.identity.name]
    return told


def _able(catalogue: Catalogue, route: str) -> list[LoadedModel]:
    """The models that answer `route` to who names none."""
    able = [served for served in catalogue if route in routes_of(served.model)]
    return able[:1] if route in ANY else able


def _let_ask(operation: dict[str, Any], route: str, able: Iterable[LoadedModel]) -> None:
    """Leave the examples that one of `able` answers, each with its name where it has one."""
    body = operation["requestBody"]["content"]["application/json"]
    answered = {}
    for name, example in body["examples"].items():
        chosen = next((served for served in able if _is_for(served.model, route, name)), None)
        if chosen is None:
            continue
        if "model" in example["value"]:
            example["value"]["model"] = chosen.identity.name
        answered[name] = example
    body["examples"] = answered


def _is_for(model: OpenModel, route: str, example: str) -> bool:
    return route not in _EITHER or _ASKS.get(example, _reads_texts_alone)(model)


def _reads_texts_alone(model: OpenModel) -> bool:
    return not (_reads_pairs(model) or isinstance(model, Answerer))


def _reads_pairs(model: OpenModel) -> bool:
    return model.manifest.reads_pairs


_EITHER = frozenset({"/classify", "/predict", "/pipeline/text-classification", "/invocations", TENSORS})
"""Routes of models that read a text alone and of models that read two together; each example is for either."""
_ASKS: Mapping[str, Callable[[OpenModel], bool]] = MappingProxyType(
    {
        "pair": _reads_pairs,
        "pairs": _reads_pairs,
        "named": lambda model: isinstance(model, Encoder),
        "entities": lambda model: isinstance(model, Tagger),
        "answers": lambda model: isinstance(model, Answerer),
    }
)
"""By the name of an example there, of which models it asks something; any other example has texts alone."""
