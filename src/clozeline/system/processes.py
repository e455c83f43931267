"""Commands under the supervisor, which leaves none of their processes behind; signals that may not cut off an end.

`timeout`, systemd and Docker signal a process more than once, or its process group as well: repeated signals must not
cut off the shutdown that the first one began.
"""

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

_ENDS_WITHIN_SECONDS = 9.0  # longer than the supervisor's own shutdown
# The shell takes the input away from a command in the background, unless it is another descriptor.
_SHIELD = 'exec 3<&0; "$@" <&3 3<&- & trap "kill $!; wait $!; exit $?" TERM; wait $!'


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
        [*shield, sys.executable, str(Path(__file__).with_name("supervisor.py")), *command],
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
