"""Keeps an exception for those whose work it was, where one piece of work must not end the others."""

from types import TracebackType
from typing import Self


class Caught:
    """`with Caught() as caught:` swallows an exception into `caught.error`.

    What is to end the thread or the process goes on.
    """

    error: Exception | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> bool:
        if isinstance(error, Exception):
            self.error = error
        return self.error is not None
