"""Errors of inference, a class for each fault, so that a server can name the fault to its clients.

DataError
├── TextError             a fault of one of the texts; `number` says which
│   ├── TextTooLongError
│   ├── NoMaskError
│   ├── MaskCutOffError
│   ├── NotAPairError
│   └── NotUnicodeError
└── TargetError           a target is not one token of the vocabulary
ArtifactError
└── NotANumberError       the graph gave NaN or infinity: a fault of the model, not of the client
"""

from clozeline.errors import ArtifactError, DataError


def is_panic(error: BaseException) -> bool:
    """Whether `error` is a panic of a Rust library such as tokenizers.

    Its class derives from `BaseException` alone and cannot be imported.
    """
    return type(error).__name__ == "PanicException" and type(error).__module__ == "pyo3_runtime"


class TextError(DataError):
    """One of the texts given cannot be used."""

    def __init__(self, problem: str, *, number: int, given: object, expected: str, do: str) -> None:
        super().__init__(f"text {number} {problem}", given=given, expected=expected, do=do)
        self.number = number
        """Index of the text among those given, from 0."""


class TextTooLongError(TextError):
    """The text has more tokens than the model can read."""


class NoMaskError(TextError):
    """The text has no mask, or all its masks were cut off."""


class MaskCutOffError(TextError):
    """Some of the text's masks were cut off, so that the answer would silently miss them."""


class NotAPairError(TextError):
    """The input is a single text, and the model reads pairs."""


class NotUnicodeError(TextError):
    """The text has lone surrogates."""


class TargetError(DataError):
    """A target is not one token of the vocabulary."""


class NotANumberError(ArtifactError):
    """The graph gave NaN or infinity."""
