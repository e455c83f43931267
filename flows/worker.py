"""Runs a worker of Prefect that SIGTERM ends within 30 s: `python -m clozeline.flows.worker --pool clozeline`.

`prefect worker start` has no such limit: at its end it delivers its last events, and a server that accepts connections
but never answers holds each of them for two minutes. So the worker runs under this process, which passes the signal on,
waits `_PATIENCE_SECONDS`, and then ends the worker, its runs and their stages. A run that was ended that way continues
from its last checkpoint. If this process is killed (-9), its worker ends, too.
"""

import contextlib
import ctypes
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from clozeline.system import supervisor, workspace

_PATIENCE_SECONDS = 15.0
_SET_SIGNAL_OF_PARENTS_DEATH = 1  # <linux/prctl.h>

logger = logging.getLogger(__name__)


def work(command: Sequence[str]) -> int:
    """Run a worker until it ends or this process gets SIGTERM or SIGINT; return its exit code, or 0 after a signal."""
    supervisor.adopt_orphans()
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    # In a session of its own: a second signal, as from Ctrl-C or systemd, would make the worker kill itself at once.
    worker = subprocess.Popen(command, start_new_session=True, preexec_fn=_end_with_parent)
    while not stopping.is_set():
        with contextlib.suppress(subprocess.TimeoutExpired):
            worker.wait(timeout=0.1)
            break
    if stopping.is_set():
        worker.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            worker.wait(_PATIENCE_SECONDS)
        if worker.poll() is None:
            logger.warning("the worker did not end within %.0f s, and is killed", _PATIENCE_SECONDS)
    supervisor.end_descendants(worker.pid)
    code = worker.wait()
    return 0 if stopping.is_set() else code if code >= 0 else 128 - code


def _end_with_parent() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SET_SIGNAL_OF_PARENTS_DEATH, signal.SIGTERM, 0, 0, 0)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    os.environ.setdefault("CLOZELINE_HOME", str(Path.cwd()))
    workspace.use_own_password(workspace.Workspace(Path(os.environ["CLOZELINE_HOME"])))
    sys.exit(work([sys.executable, "-m", "prefect", "worker", "start", "--type", "process", *sys.argv[1:]]))
