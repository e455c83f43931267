"""Repeated signals must not cut off the shutdown that the first one began.

`timeout`, systemd and Docker signal a process more than once, or its process group as well.
"""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Ignore Ctrl-C during the block, and SIGTERM and SIGHUP from now on."""
    ignore_termination()
    if not _is_main_thread():  # Python sets and runs signal handlers only in the main thread
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def ignore_termination() -> None:
    """Ignore SIGTERM and SIGHUP from now on: this process is ending."""
    if _is_main_thread():
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)


def _is_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()
