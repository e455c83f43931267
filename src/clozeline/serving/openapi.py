"""What /openapi.json says beside the schemas: examples, which a test sends, and errors."""

from collections.abc import Set
from typing import Any

from fastapi.openapi.models import Example

from clozeline.serving.errors import ErrorEnvelope
from clozeline.serving.protocols.dialects import HOUSE, Dialect

DESCRIPTION = """Your own encoder, answering on an ordinary CPU.

These are the routes that the models of this server answer.
`/models/NAME` before the path of a route, as in `/models/NAME/embed`, lets the model of that name answer: for clients
that know a base URL and cannot send `model`.
Errors come in the words of the protocol of their route; where it has none of its own, they are
`{"error": {"code", "message", "param", "given", "expected", "do"}}`. Each route shows which it is.
Every answer says in `x-model`, `x-model-version` and `x-model-sha256` which model gave it.
"""

FILL_MASK_EXAMPLES: dict[str, Example] = {
    "one mask": {"summary": "The likeliest words", "value": {"inputs": "Return the [MASK] of the list."}},
    "targets": {
        "summary": "Only certain characters compete",
        "value": {"inputs": "Return the [MASK] of the list.", "parameters": {"targets": ["a", "b"], "top_k": 2}},
    },
    "several": {
        "summary": "Several texts, several masks",
        "value": {
            "inputs": ["Return the [MASK] of the list.", "[MASK] a [MASK] to a file."],
            "parameters": {"top_k": 3},
        },
    },
}
EMBED_EXAMPLES: dict[str, Example] = {
    "one text": {"summary": "One text, one vector", "value": {"inputs": "Sort a list in place."}},
    "several": {
        "summary": "Several texts; long ones are cut",
        "value": {"inputs": ["Sort a list in place.", "Open a file for reading."], "truncate": True},
    },
}
CLASSIFY_EXAMPLES: dict[str, Example] = {
    "one text": {"summary": "The likeliest labels", "value": {"inputs": "Apply a 2D convolution over the input."}},
    "several": {
        "summary": "Several texts, the best label of each",
        "value": {
            "inputs": ["Apply a 2D convolution over the input.", "Parse a date."],
            "parameters": {"top_k": 1},
        },
    },
    "pair": {
        "summary": "A pair of texts, of a model that reads pairs",
        "value": {"inputs": {"text": "How do I sort a list?", "text_pair": "Sort a list in place."}},
    },
}

TAG_EXAMPLES: dict[str, Example] = {
    "one text": {"summary": "The entities of a text", "value": {"inputs": "Maria Lopez lives in Oslo."}},
    "several": {
        "summary": "Several texts, whole words",
        "value": {
            "inputs": ["Maria Lopez lives in Oslo.", "Acme opens in Rome."],
            "parameters": {"aggregation_strategy": "first"},
        },
    },
    "tokens": {
        "summary": "Every token with its tag",
        "value": {"inputs": "Oslo.", "parameters": {"aggregation_strategy": "none", "ignore_labels": []}},
    },
}
_ASKED = {"question": "Where does Maria live?", "context": "Maria Lopez lives in Oslo. She works in Rome."}
ANSWER_EXAMPLES: dict[str, Example] = {
    "one": {"summary": "The best answer", "value": {"inputs": _ASKED}},
    "several": {
        "summary": "Three answers, no answer perhaps among them",
        "value": {"inputs": _ASKED, "parameters": {"top_k": 3, "handle_impossible_answer": True}},
    },
}

Responses = dict[int | str, dict[str, Any]]

_LATER = "Loading, or stopping; Retry-After says when"
_NO_KEY = "No API key that is known, where keys are asked for"
NOT_READY: Responses = {503: {"model": ErrorEnvelope, "description": _LATER}}
"""Of what everybody may ask."""


def not_ready(dialect: Dialect = HOUSE) -> Responses:
    """What a route that tells of the server may say instead."""
    return {
        401: {"model": dialect.envelope, "description": _NO_KEY},
        503: {"model": dialect.envelope, "description": _LATER},
    }


def beside_text(responses: Responses) -> Responses:
    """`responses`, of a route whose own answer is text: FastAPI would say that these are text as well."""
    return {
        status: {
            "description": told["description"],
            "content": {"application/json": {"schema": {"$ref": f"#/components/schemas/{told['model'].__name__}"}}},
        }
        for status, told in responses.items()
    }


def refusals(dialect: Dialect) -> Responses:
    """What any route that a model answers may say instead."""
    described = {
        400: "The body is not JSON",
        401: _NO_KEY,
        404: "No such model, or no such label",
        408: "The body did not come to its end",
        413: "The body is too large, or more work than is done before the deadline",
        415: "The content type is not JSON in UTF-8, or the body is compressed",
        429: "Too much work waits; Retry-After says when to come back",
        503: _LATER,
        504: "The deadline of the request passed",
    }
    unusable = "A field, or a text, that cannot be used"
    status = dialect.unusable
    described[status] = f"{described[status]}; or: {unusable}" if status in described else unusable
    told: Responses = {
        status: {"model": dialect.envelope, "description": meaning} for status, meaning in sorted(described.items())
    }
    # FastAPI documents an answer of its own, which is never given, where neither 422 nor this is.
    return told if 422 in told else told | {"default": {"model": dialect.envelope, "description": "Any other fault"}}


_NAMED = {
    "x-model": "Name of the model that answered",
    "x-model-version": "Its version",
    "x-model-sha256": "SHA-256 of its graph",
}
_TIMED = {
    "x-compute-tokens": "Tokens of the texts, special tokens among them",
    "x-tokenization-time": "Milliseconds until the texts were tokenized",
    "x-queue-time": "Milliseconds from there until the first text ran",
    "x-inference-time": "Milliseconds from there until the last answer was there",
    "x-total-time": "Milliseconds of all three",
}


def answered(description: str, dialect: Dialect = HOUSE, *, is_timed: bool = True) -> Responses:
    """The 200 of a route that a model answers, with the headers that name the model, and the time where a graph ran."""
    meanings = _NAMED | _TIMED if is_timed else _NAMED
    headers = {name: {"description": meaning, "schema": {"type": "string"}} for name, meaning in meanings.items()}
    return {200: {"description": description, "headers": headers}, **refusals(dialect)}


def ask_for_keys(document: dict[str, Any], open_paths: Set[str]) -> None:
    """Let `document` say that every path but `open_paths` wants a key, in one header or the other."""
    document.setdefault("components", {})["securitySchemes"] = {
        "bearer": {"type": "http", "scheme": "bearer"},
        "key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
    }
    for path, operations in document["paths"].items():
        for operation in operations.values():
            operation["security"] = [] if path in open_paths else [{"bearer": []}, {"key": []}]
