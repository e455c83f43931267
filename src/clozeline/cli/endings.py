"""Graceful shutdown of commands on signals, with the command that continues the work."""

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

import typer

from clozeline.orchestration.signals import ignore_termination

_STOPPED: Final = (
    "stopped. The same command continues from here: finished stages and registered versions are kept, and a training"
    " continues from its last checkpoint"
)


@contextmanager
def ending_orderly() -> Iterator[None]:
    """Turn SIGTERM, and SIGHUP from a closed terminal, into SystemExit: the command first stops its child processes.

    By default both kill the process at once. An ignored SIGHUP (`nohup`) stays ignored. A stopped command prints the
    command that continues it, also after Ctrl-C. Afterwards the signals are ignored: one during the shutdown of the
    interpreter would print a traceback.
    """
    signal.signal(signal.SIGTERM, _unwind)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        # Inside a flow Prefect handles SIGTERM itself, but not SIGHUP.
        signal.signal(signal.SIGHUP, lambda *_: signal.raise_signal(signal.SIGTERM))
    try:
        yield
    except Exception:
        raise
    except BaseException:  # Ctrl-C, or SIGTERM turned into an exception
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        typer.echo(_STOPPED, err=True)
        raise
    finally:
        ignore_termination()


def _unwind(number: int, frame: FrameType | None) -> None:
    ignore_termination()
    sys.exit(128 + number)
