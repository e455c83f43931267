"""Runs one command and ensures that none of its processes outlives the flow: `python supervisor.py COMMAND …`.

Killing `dvc repro` leaves its stage running, and the next run would start a second one beside it. So the command
runs under this small process, which ends every descendant on SIGTERM, when the command ends, and when the flow is
gone. The flow holds the other end of our standard input, and the kernel closes it even on `kill -9`.
Descendants that left the process group or lost their parent are found too: on Linux they become children of ours.
"""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Sequence

import psutil

# Grace period for the stage to exit, then for DVC to release its lock; remaining processes are killed.
_STAGE_SECONDS = 4.0
_COMMAND_SECONDS = 2.0
_SET_CHILD_SUBREAPER = 36  # <linux/prctl.h>


def supervise(command: Sequence[str]) -> int:
    """Run `command`; return its exit code, or 128 + n if signal n ended it."""
    adopt_orphans()
    stopping = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    threading.Thread(target=_wait_for_the_flow_to_end, args=[stopping], daemon=True).start()
    while not stopping.is_set():
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(timeout=0.1)
            break
    end_descendants(child.pid)
    code = child.wait()
    return code if code >= 0 else 128 - code


def _wait_for_the_flow_to_end(stopping: threading.Event) -> None:
    while os.read(0, 1024):
        pass
    stopping.set()


def adopt_orphans() -> None:
    """Make descendants whose parent ends children of this process (on Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def end_descendants(command_pid: int) -> None:
    """End all descendants of this process: the stage first, so that DVC sees it end and releases its locks."""
    others = [process for process in _descendants() if process.pid != command_pid]
    if others:
        _signal(others, signal.SIGTERM)
        _wait_for_descendants(_STAGE_SECONDS)
    _signal(_descendants(), signal.SIGTERM)
    _wait_for_descendants(_COMMAND_SECONDS)
    while left := _descendants():
        _signal(left, signal.SIGKILL)
        time.sleep(0.05)


def _descendants() -> list[psutil.Process]:
    """Return the running descendants, including adopted ones."""
    living = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if process.status() != psutil.STATUS_ZOMBIE:
                living.append(process)
    return living


def _signal(processes: Iterable[psutil.Process], number: signal.Signals) -> None:
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(number)


def _wait_for_descendants(seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while _descendants() and time.monotonic() < deadline:
        time.sleep(0.05)


if __name__ == "__main__":
    sys.exit(supervise(sys.argv[1:]))
