"""The standard error of a stage, when ours is a terminal: the stage sees a terminal too, so its progress bars show."""

import fcntl
import os
import sys
import termios
from dataclasses import dataclass


@dataclass(frozen=True)
class StandardError:
    """What a stage process gets as standard error, and where the flow reads it."""

    given: int
    """File descriptor for the stage."""
    read: int | None
    """File descriptor for the flow; None if it comes with standard output."""

    def close_given(self) -> None:
        if self.read is not None:
            os.close(self.given)

    def close_read(self) -> None:
        if self.read is not None:
            os.close(self.read)


def terminal_or(output: int) -> StandardError:
    """A pseudo-terminal as large as ours, if ours is one; `output` if not."""
    if not sys.stderr.isatty():
        return StandardError(given=output, read=None)
    ours, theirs = os.openpty()
    size = fcntl.ioctl(sys.stderr.fileno(), termios.TIOCGWINSZ, b"\0" * 8)
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, size)
    return StandardError(given=theirs, read=ours)
