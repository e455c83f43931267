"""What /openapi.json says beside the schemas: examples, which a test sends, and errors, which all look alike."""

from typing import Any

from fastapi.openapi.models import Example

from clozeline.serving.errors import ErrorEnvelope

DESCRIPTION = """Your own encoder, answering on an ordinary CPU.

Every error, whatever its status, is `{"error": {"code", "message", "param", "given", "expected", "do"}}`.
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
}

Responses = dict[int | str, dict[str, Any]]

NOT_READY: Responses = {503: {"model": ErrorEnvelope, "description": "Loading, or stopping; Retry-After says when"}}
REFUSALS: Responses = {
    401: {
        "model": ErrorEnvelope,
        "description": "No API key that is known, where keys are asked for",
    },
    400: {"model": ErrorEnvelope, "description": "The body is not JSON"},
    404: {"model": ErrorEnvelope, "description": "No such model, or no such label"},
    413: {"model": ErrorEnvelope, "description": "The body is too large"},
    415: {"model": ErrorEnvelope, "description": "The content type is not JSON"},
    422: {"model": ErrorEnvelope, "description": "A field, or a text, that cannot be used"},
    429: {"model": ErrorEnvelope, "description": "Too much work waits; Retry-After says when to come back"},
    **NOT_READY,
    504: {"model": ErrorEnvelope, "description": "The deadline of the request passed"},
}


def answered(description: str) -> Responses:
    """The 200 of a route that a model answers, with the headers that name the model."""
    meanings = {
        "x-model": "Name of the model that answered",
        "x-model-version": "Its version",
        "x-model-sha256": "SHA-256 of its graph",
        "x-compute-tokens": "Tokens of the texts, special tokens among them",
        "x-tokenization-time": "Milliseconds until the texts were tokenized",
        "x-queue-time": "Milliseconds from there until the first text ran",
        "x-inference-time": "Milliseconds from there until the last answer was there",
        "x-total-time": "Milliseconds of all three",
    }
    headers = {name: {"description": meaning, "schema": {"type": "string"}} for name, meaning in meanings.items()}
    return {200: {"description": description, "headers": headers}, **REFUSALS}
