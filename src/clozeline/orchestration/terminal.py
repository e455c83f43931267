"""Standard error of a stage. If ours is a terminal, the stage gets a terminal too, so that its progress bars show."""

import fcntl
import os
import sys
import termios
from dataclasses import dataclass


@dataclass(frozen=True)
class StandardError:
    """Standard error of a stage process: its write end and its read end."""

    given: int
    """File descriptor for the stage."""
    read: int | None
    """File descriptor for the flow; None if standard error goes to standard output."""

    def close_given(self) -> None:
        if self.read is not None:
            os.close(self.given)

    def close_read(self) -> None:
        if self.read is not None:
            os.close(self.read)


def terminal_or(output: int) -> StandardError:
    """Return a pseudo-terminal of the size of ours if our standard error is a terminal; otherwise `output`."""
    if not sys.stderr.isatty():
        return StandardError(given=output, read=None)
    ours, theirs = os.openpty()
    size = fcntl.ioctl(sys.stderr.fileno(), termios.TIOCGWINSZ, b"\0" * 8)
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, size)
    return StandardError(given=theirs, read=ours)
