"""What becomes of a record that cannot be read."""

from collections.abc import Callable

from clozeline.errors import DataError

OnBad = Callable[[DataError], None]
"""Called with the error of a bad record. If it returns, the record is left out."""


def stop(error: DataError) -> None:
    """Raise the error: the first bad record ends the reading."""
    raise error
