"""How a command that was told to end does so."""

import signal
import sys
from types import FrameType


def end_orderly_when_told() -> None:
    """Let SIGTERM, and SIGHUP of a terminal that was closed, unwind the command: what it started is ended first.

    By default both end a process on the spot. A SIGHUP that is ignored (`nohup`) stays ignored.
    """
    signal.signal(signal.SIGTERM, _unwind)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        # Inside a flow Prefect has a handler of its own for SIGTERM, and none for this.
        signal.signal(signal.SIGHUP, lambda *_: signal.raise_signal(signal.SIGTERM))


def _unwind(number: int, frame: FrameType | None) -> None:
    sys.exit(128 + number)
