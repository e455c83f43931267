"""Graceful shutdown of commands on signals."""

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from clozeline.orchestration.signals import ignore_termination


@contextmanager
def ending_orderly() -> Iterator[None]:
    """Turn SIGTERM, and SIGHUP from a closed terminal, into SystemExit: the command first stops its child processes.

    By default both kill the process at once. An ignored SIGHUP (`nohup`) stays ignored. After the block both are
    ignored: a signal during the shutdown of the interpreter would print a traceback.
    """
    signal.signal(signal.SIGTERM, _unwind)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        # Inside a flow Prefect handles SIGTERM itself, but not SIGHUP.
        signal.signal(signal.SIGHUP, lambda *_: signal.raise_signal(signal.SIGTERM))
    try:
        yield
    finally:
        ignore_termination()


def _unwind(number: int, frame: FrameType | None) -> None:
    ignore_termination()
    sys.exit(128 + number)
