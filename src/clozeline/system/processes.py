"""Commands under the supervisor, which leaves none of their processes behind; signals that may not cut off an end.

`timeout`, systemd and Docker signal a process more than once, or its process group as well: repeated signals must not
cut off the shutdown that the first one began.

Killing `dvc repro` leaves its stage running, and the next run would start a second one beside it. So the command runs
under this file as a small process (`python processes.py COMMAND …`), which ends every descendant on SIGTERM, when the
command ends, and when the flow is gone. The flow holds the other end of our standard input, and the kernel closes it
even on `kill -9`. Descendants that left the process group or lost their parent are found too: on Linux they become
children of ours.
"""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil

_ENDS_WITHIN_SECONDS = 9.0  # longer than the supervisor's own shutdown
# The shell takes the input away from a command in the background, unless it is another descriptor.
_SHIELD = 'exec 3<&0; "$@" <&3 3<&- & trap "kill $!; wait $!; exit $?" TERM; wait $!'
# Grace period for the stage to exit, then for DVC to release its lock; remaining processes are killed.
_STAGE_SECONDS = 4.0
_COMMAND_SECONDS = 2.0
_SET_CHILD_SUBREAPER = 36  # <linux/prctl.h>


def start(
    command: Sequence[str],
    *,
    folder: Path,
    environment: Mapping[str, str],
    output: int,
    errors: int,
    kept_open: Sequence[int] = (),
    is_shielded: bool = False,
) -> "subprocess.Popen[bytes]":
    """Start `command` in `folder`, in a session of its own: Ctrl-C reaches only us, and we end it.

    `output`, `errors`: file descriptors. `kept_open`: those that each of its processes inherits and holds.
    `is_shielded`: whether to keep it from being a child of this process, where these are killed before its end.
    """
    shield = ["/bin/sh", "-c", _SHIELD, "shield"] if is_shielded else []
    return subprocess.Popen(
        [*shield, sys.executable, __file__, *command],
        cwd=folder,
        env=dict(environment),
        stdin=subprocess.PIPE,
        stdout=output,
        stderr=errors,
        start_new_session=True,
        pass_fds=kept_open,
    )


def end(process: "subprocess.Popen[bytes]") -> None:
    """End a started command with all its processes, if it has not ended."""
    if process.poll() is None:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_ENDS_WITHIN_SECONDS)
    if process.returncode is None or process.returncode < 0:
        # The supervisor itself was stopped or killed; its children are in its process group.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    assert process.stdin
    process.stdin.close()


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
