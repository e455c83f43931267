"""Reads the output of a process as it arrives: as lines for the log, and raw for our terminal."""

import codecs
import os
import re
import selectors
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, TextIO

_READ_BYTES: Final = 65_536
_TAIL_CHARACTERS: Final = 20_000
_ESCAPES: Final = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")


@dataclass(frozen=True)
class Stream:
    """One file descriptor that a process writes to."""

    descriptor: int
    is_terminal: bool
    """Whether the output is copied to our terminal as it arrives, including progress bars."""


class Transcript:
    """Lines of a process: `log` gets all, `hear` those that no terminal shows, `tail` holds the last ones."""

    def __init__(self, log: TextIO, hear: Callable[[str], None]) -> None:
        self._log = log
        self._hear = hear
        self.tail = ""

    def add(self, line: str, *, is_shown: bool) -> None:
        self._log.write(f"{line}\n")
        self._log.flush()
        self.tail = f"{self.tail}{line}\n"[-_TAIL_CHARACTERS:]
        if not is_shown:
            self._hear(line)


def read_all(streams: Sequence[Stream], transcript: Transcript) -> None:
    """Read until every stream has ended."""
    with selectors.DefaultSelector() as selector:
        for stream in streams:
            selector.register(stream.descriptor, selectors.EVENT_READ, _Reader(stream, transcript))
        while selector.get_map():
            for key, _ in selector.select():
                if not key.data.read():
                    selector.unregister(key.fd)


class _Reader:
    """Cuts one stream into lines; of a redrawn line (a progress bar) it keeps the last drawing."""

    def __init__(self, stream: Stream, transcript: Transcript) -> None:
        self._stream = stream
        self._transcript = transcript
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._rest = ""

    def read(self) -> bool:
        """Read the available bytes; return False at the end of the stream."""
        content = _read(self._stream.descriptor)
        if self._stream.is_terminal and content:
            sys.stderr.buffer.write(content)
            sys.stderr.flush()
        *lines, self._rest = (self._rest + self._decoder.decode(content)).split("\n")
        if not content and self._rest:
            lines.append(self._rest)
        for line in lines:
            self._transcript.add(_last_drawing(line), is_shown=self._stream.is_terminal)
        return bool(content)


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, _READ_BYTES)
    except OSError:  # Linux ends a pseudo-terminal with EIO
        return b""


def _last_drawing(line: str) -> str:
    return _ESCAPES.sub("", line.rstrip("\r").rpartition("\r")[2])
