"""What is wrong with what was asked: a class for each fault, so that a server can tell its clients which it is.

DataError
├── TextError             one of the texts given; `number` says which
│   ├── TextTooLongError
│   ├── NoMaskError
│   ├── MaskCutOffError
│   ├── NotAPairError
│   └── NotUnicodeError
└── TargetError           a target is not one token of the vocabulary
ArtifactError
└── NotANumberError       the model's fault, not the client's: its graph gave NaN or infinity
"""

from clozeline.errors import ArtifactError, DataError


class TextError(DataError):
    """One of the texts given cannot be used."""

    def __init__(self, problem: str, *, number: int, given: object, expected: str, do: str) -> None:
        super().__init__(f"text {number} {problem}", given=given, expected=expected, do=do)
        self.number = number
        """Of the text among those given, from 0."""


class TextTooLongError(TextError):
    """The text has more tokens than the model reads."""


class NoMaskError(TextError):
    """The text has no mask, or all of them were cut off."""


class MaskCutOffError(TextError):
    """Some of the text's masks were cut off: what is left would be answered as if it had been all."""


class NotAPairError(TextError):
    """The text stands alone, and the model reads two together."""


class NotUnicodeError(TextError):
    """The text has lone surrogates."""


class TargetError(DataError):
    """A target is not one token of the vocabulary."""


class NotANumberError(ArtifactError):
    """The graph gave something else than finite numbers."""
