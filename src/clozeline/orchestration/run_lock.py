"""Lock that allows one run at a time in a project folder: a kernel file lock (flock), which ends with its holder.

DVC's own locks cannot tell a holder in another container from a dead one; the kernel can.
"""

import fcntl
import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from clozeline.errors import TransientError

_LOG = logging.getLogger(__name__)


@contextmanager
def run_lock(path: Path, *, wait_seconds: float = 15.0, flow_run: str | None = None) -> Iterator[int]:
    """Hold the lock; yield its file descriptor, which child processes may inherit to hold it too.

    `wait_seconds` is as long as a killed run may take to end. `flow_run`: id of the flow run that holds the lock.

    Raises:
        TransientError: another run still holds the lock after `wait_seconds`.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+", encoding="utf-8") as file:
        _acquire(file.fileno(), path, wait_seconds)
        file.truncate(0)
        holder = f"process {os.getpid()}" + (f", flow run {flow_run}," if flow_run else "")
        file.write(f"{holder} since {time.strftime('%Y-%m-%d %H:%M:%S%z')}\n")
        file.flush()
        yield file.fileno()


def _acquire(descriptor: int, path: Path, wait_seconds: float) -> None:
    deadline = time.monotonic() + wait_seconds
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError as error:
            if time.monotonic() >= deadline:
                raise TransientError(
                    "another run is active in this folder",
                    given=f"{path} is held by {path.read_text(encoding='utf-8').strip() or 'another process'}",
                    expected="one run at a time, because two would write the same files",
                    do="wait until it ends, or stop it (Ctrl-C in its terminal)",
                ) from error
            time.sleep(0.2)
