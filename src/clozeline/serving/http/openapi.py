"""/openapi.json: requests and answers of all paths, or of the paths that the served models answer."""

import re
from collections.abc import Iterable, Mapping, Set
from copy import deepcopy
from functools import cache, cached_property
from importlib.metadata import version
from inspect import getdoc
from pathlib import Path
from typing import Any, Literal

from pydantic import TypeAdapter
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from ruamel.yaml import YAML

from clozeline.serving import asking, loading, models
from clozeline.serving.http.bodies import TimeoutMilliseconds
from clozeline.serving.http.endpoint import TIMEOUT_HEADER
from clozeline.serving.http.operation import Dialects, Operation, Words

DESCRIPTION = """Your own encoder, served on an ordinary CPU.

This document lists the routes that the served models answer. While the models load, and without a valid API key, it
lists all routes.

`/models/NAME` before the path of a route, as in `/models/NAME/embed`, chooses the model of that name, for clients that
know a base URL and cannot send `model`.

An error has the form of its route's protocol, or Clozeline's own:
`{"error": {"code", "message", "param", "given", "expected", "do"}}`. Each route shows its form.

The headers `x-model`, `x-model-version` and `x-model-sha256` name the model that answered. A request with
`x-model-version` is answered by that version or refused.
"""
_NAMED = {
    "x-model": "Name of the model that answered",
    "x-model-version": "Its version",
    "x-model-sha256": "SHA-256 of its graph",
}
_TIMED = {"x-compute-tokens": "Tokens of the texts, including special tokens", **asking.TIMES}
_HEADERS: Mapping[str, Mapping[str, str]] = {"nothing": {}, "model": _NAMED, "time": _NAMED | _TIMED}
_IN_PATH: Mapping[str, tuple[str, dict[str, Any]]] = {
    "model": ("A name from /models.", {"examples": ["encoder"]}),
    "version": ("Version of the model; any version but the served one gets a 404.", {}),
}
_KEYS = {"bearer": {"type": "http", "scheme": "bearer"}, "key": {"type": "apiKey", "in": "header", "name": "x-api-key"}}
_JSON = "application/json"
_Part = tuple[Operation | Words, Literal["body", "answer", "error"]]


# Names of classes in the document, where they differ: generated clients hold them.
_COMPONENTS = {
    "Filled": "Candidate",
    "Piece": "SimpleToken",
    "InvocationRecord": "Record",
    "OpenAIModel": "Model",
    "OpenAIModelList": "clozeline__serving__http__openai__ModelList",
    "ModelList": "clozeline__serving__http__status__ModelList",
}


class _Unsorted(GenerateJsonSchema):
    """Keeps the order of keys: the type of a value before its bounds, as people and request generators read it."""

    def normalize_name(self, name: str) -> str:
        return _COMPONENTS.get(name, super().normalize_name(name))

    def sort(self, value: JsonSchemaValue, parent_key: str | None = None) -> JsonSchemaValue:
        return value


class OpenAPIDocument:
    """The document of `dialects`. `open_paths` need no API key; None: no path does.

    It is built on first use, in about 0.25 s.
    """

    def __init__(self, dialects: Dialects, open_paths: Set[str] | None = None) -> None:
        self._dialects = dialects
        self._open_paths = open_paths

    @cached_property
    def whole(self) -> dict[str, Any]:
        """The document of every path."""
        schemas, components = self._schemas()
        paths: dict[str, Any] = {}
        for dialect in self._dialects.rows:
            for operation in dialect.operations:
                entry = _operation(operation, dialect.words, schemas) | ({"tags": [dialect.tag]} if dialect.tag else {})
                if self._open_paths is not None:
                    entry["security"] = [] if operation.path in self._open_paths else [{name: []} for name in _KEYS]
                paths[operation.path] = {operation.method.lower(): entry}
        info = {"title": "Clozeline", "description": DESCRIPTION, "version": version("clozeline")}
        keys = {} if self._open_paths is None else {"securitySchemes": _KEYS}
        return {"openapi": "3.1.0", "info": info, "paths": paths, "components": {"schemas": components, **keys}}

    def served(self, catalogue: models.Catalogue) -> dict[str, Any]:
        """Return the document of the paths that a model of `catalogue` answers. Its examples work as they are."""
        paths = {}
        for operation in self._dialects.operations:
            served = _served(operation, self.whole["paths"][operation.path], catalogue)
            if served:
                paths[operation.path] = served
        return {**self.whole, "paths": paths}

    def _schemas(self) -> tuple[dict[_Part, Any], dict[str, Any]]:
        """Return the schema of each part of each path, and the schemas that these share."""
        asked: list[tuple[_Part, Literal["validation", "serialization"], TypeAdapter[Any]]] = []
        for operation in self._dialects.operations:
            if operation.body:
                asked.append(((operation, "body"), "validation", TypeAdapter(operation.body)))
            if not isinstance(operation.result, str):
                asked.append(((operation, "answer"), "serialization", TypeAdapter(operation.result)))
        asked += [
            ((words, "error"), "serialization", TypeAdapter(words.envelope))
            for words in {row.words for row in self._dialects.rows}
        ]
        found, shared = TypeAdapter.json_schemas(
            asked, ref_template="#/components/schemas/{model}", schema_generator=_Unsorted
        )
        schemas = {part: _without_nulls(schema) for (part, _), schema in found.items()}
        return schemas, _without_nulls(dict(sorted(shared["$defs"].items())))


def _without_nulls(schema: Any) -> Any:
    """Return `schema` without `default: null`, which makes request generators send a null for each key."""
    if isinstance(schema, dict):
        return {key: _without_nulls(value) for key, value in schema.items() if value is not None}
    return [_without_nulls(one) for one in schema] if isinstance(schema, list) else schema


def _operation(operation: Operation, words: Words, schemas: Mapping[_Part, Any]) -> dict[str, Any]:
    """Return the entry of a path. The docstring of its handler has the summary in its first line, and `Returns:`."""
    told, _, returned = (getdoc(operation.answer) or "").partition("\n\nReturns:\n")
    summary, _, description = told.partition("\n\n")
    result = operation.result_description or " ".join(returned.split()).removesuffix(".") or "Successful Response"
    documented: dict[str, Any] = {
        "summary": operation.summary or summary.removesuffix("."),
        "operationId": re.sub(r"\W", "_", f"{operation.name or operation.answer.__name__}{operation.path}")
        + f"_{operation.method.lower()}",
        "responses": {
            "200": _answer(operation, result, schemas),
            **_refusals(operation, words, schemas[words, "error"]),
        },
    }
    if parameters := _parameters(operation):
        documented["parameters"] = parameters
    if description:
        documented["description"] = description
    if operation.body:
        examples = {name: _shown(example) for name, example in _examples_of(operation).items()}
        content = {_JSON: {"schema": schemas[operation, "body"], "examples": examples}}
        documented["requestBody"] = {"required": True, "content": content}
    return documented


def _examples_of(operation: Operation) -> dict[str, dict[str, Any]]:
    """Return each example as in the file. The server answers them: /docs shows them, and a test sends each."""
    return _examples().get(operation.body.__name__, {}) if operation.body else {}


def _shown(example: dict[str, Any], **more: str) -> dict[str, Any]:
    return {"summary": example["summary"], "value": example["value"] | more}


@cache
def _examples() -> dict[str, dict[str, dict[str, Any]]]:
    """Return the examples by the class of the request."""
    examples: dict[str, dict[str, dict[str, Any]]] = YAML(typ="safe").load(Path(__file__).with_name("examples.yaml"))
    return examples


def _parameters(operation: Operation) -> list[dict[str, Any]]:
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string", **more}, "description": meaning}
        for name in re.findall(r"{(\w+)}", operation.path)
        for meaning, more in [_IN_PATH[name]]
    ]
    if operation.is_timed:
        schema = TypeAdapter(TimeoutMilliseconds).json_schema()
        meaning = schema.pop("description")
        parameters.append(
            {"name": TIMEOUT_HEADER, "in": "header", "required": False, "schema": schema, "description": meaning}
        )
    return parameters


def _answer(operation: Operation, description: str, schemas: Mapping[_Part, Any]) -> dict[str, Any]:
    is_text = isinstance(operation.result, str)
    content = {operation.result: {"schema": {"type": "string"}}} if is_text else _json(schemas[operation, "answer"])
    headers = {
        name: {"description": meaning, "schema": {"type": "string"}}
        for name, meaning in _HEADERS[operation.says].items()
    }
    return {"description": description, "content": content} | ({"headers": headers} if headers else {})


def _refusals(operation: Operation, words: Words, schema: dict[str, Any]) -> dict[str, Any]:
    """Return the error responses by status. A protocol may map two statuses to one."""
    meanings: dict[int, list[str]] = {}
    for status, meaning in operation.error_meanings.items():
        meanings.setdefault(words.status(status), []).append(meaning)
    return {
        str(status): {"description": "; or: ".join(texts), "content": _json(schema)}
        for status, texts in sorted(meanings.items())
    }


def _json(schema: dict[str, Any]) -> dict[str, Any]:
    return {_JSON: {"schema": schema}}


def _served(operation: Operation, whole: dict[str, Any], catalogue: models.Catalogue) -> dict[str, Any]:
    """Return the entry `whole` of a path with examples for these models; empty if none of them answers."""
    able = catalogue.able(operation.ability) if operation.ability else []
    if operation.ability and not able:
        return {}
    adapted = deepcopy(whole)
    (asked,) = adapted.values()
    if operation.ability:
        chosen = able[:1] if operation.ability is models.ANY else able  # without a name, the first model answers
        asked["requestBody"]["content"][_JSON]["examples"] = answered_examples(operation, chosen)
    (first, *_) = catalogue
    for parameter in asked.get("parameters", ()):
        if parameter["name"] == "model":
            parameter["schema"]["examples"] = [first.identity.name]
    return adapted


def answered_examples(operation: Operation, able: Iterable[loading.LoadedModel]) -> dict[str, Any]:
    """Return the examples that a model of `able` answers, with its name where the body holds one."""
    given, examples = _examples_of(operation), {}
    is_of_one_kind = not any("needs" in example for example in given.values())
    for name, example in given.items():
        chosen = next((one for one in able if is_of_one_kind or _answers(one, example.get("needs"))), None)
        if chosen:
            named = {"model": chosen.identity.name} if "model" in example["value"] else {}
            examples[name] = _shown(example, **named)
    return examples


def _answers(served: loading.LoadedModel, needed: str | None) -> bool:
    manifest = served.model.manifest
    if needed is None:
        return served.model.pair_names(reads_pairs=manifest.reads_pairs) is None
    return manifest.reads_pairs if needed == "pairs" else manifest.task == needed
