"""Commands under the supervisor, which leaves none of their processes behind, however this process ends."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

_ENDS_WITHIN_SECONDS: Final = 9.0  # longer than the supervisor's own shutdown
# The shell takes the input away from a command in the background, unless it is another descriptor.
_SHIELD: Final = 'exec 3<&0; "$@" <&3 3<&- & trap "kill $!; wait $!; exit $?" TERM; wait $!'


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
