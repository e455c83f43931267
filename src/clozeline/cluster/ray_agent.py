"""The agent of one place of a gang: a process of Ray that runs the command of its node and passes its output on."""

import os
import select
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from clozeline.cluster.ray_connection import nodes, this_node
from clozeline.machine import supervisor

ENDS_WITHIN_SECONDS: Final = 15.0  # longer than the supervisor takes
_READ_SECONDS: Final = 2.0
_BELOW_A_SHELL: Final = ("/bin/sh", "-c", 'exec 3<&0; "$@" <&3 3<&- & wait $!', "sh")
"""Ray kills (-9) the children of a process that it ends: here a shell, so that the supervisor can end the rest."""
_AT_ONCE: Final = ("/bin/sh", "-c", '"$@"; exit $?', "sh")
"""The supervisor ends its command last: here a shell, so that torchrun gets its signal before its processes have ended.
Otherwise it would start them again, and other nodes would wait for them.
"""


@dataclass(frozen=True)
class Heard:
    node: str
    output: bytes
    exit_code: int | None
    """None while the agent runs."""


class Agent:
    """The agent of one node. If Ray ends this process, or it is killed, the supervisor ends the agent."""

    def __init__(
        self, folder: str, command: Sequence[str], theirs: Mapping[str, str], for_all: Mapping[str, str]
    ) -> None:
        own = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}  # Ray sets it
        self._process = subprocess.Popen(
            [*_BELOW_A_SHELL, sys.executable, supervisor.__file__, *_AT_ONCE, *command],
            cwd=folder,
            env={**theirs, **own, "PET_LOCAL_ADDR": nodes()[this_node()], **for_all},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        self._patience_seconds = 0.0  # the first answer says that this agent runs, and has to be ended

    def read(self) -> Heard:
        """Return what was written since the last call, after 2 s at most; the exit code comes when there is no more."""
        assert self._process.stdout
        output = self._process.stdout.fileno()
        has_more = select.select([output], [], [], self._patience_seconds)[0]
        self._patience_seconds = _READ_SECONDS
        if not has_more:
            return Heard(this_node(), b"", None)
        written = os.read(output, 1 << 16)
        return Heard(this_node(), written, None if written else self._process.wait())

    def end(self) -> None:
        assert self._process.stdin
        self._process.stdin.close()
        self._process.wait(ENDS_WITHIN_SECONDS)
