"""One server process that never outlives ours, however ours ends, because it runs under the supervisor."""

import contextlib
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from http.client import HTTPException
from pathlib import Path
from typing import Final
from urllib.request import urlopen

from clozeline.errors import TransientError
from clozeline.machine import supervised
from clozeline.orchestration.stage_environment import stage_environment
from clozeline.workspace import Workspace

HOST: Final = "127.0.0.1"
_READY_WITHIN_SECONDS: Final = 300.0
"""On a busy machine a server starts within minutes. One that ends by itself is noticed at once."""


@dataclass(frozen=True)
class Server:
    """Command, port and health endpoint of one server."""

    name: str
    command: Sequence[str]
    port: int
    health: str
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}"


@contextlib.contextmanager
def running(server: Server, workspace: Workspace) -> Iterator[subprocess.Popen[bytes]]:
    """Run the server during the block. If this process is killed, the supervisor notices and ends the server."""
    log = _log_of(server, workspace)
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as file:
        process = supervised.start(
            server.command,
            folder=workspace.root,
            environment=stage_environment(workspace, server.environment),
            output=file.fileno(),
            errors=file.fileno(),
        )
    try:
        yield process
    finally:
        process.terminate()
        process.wait()
        assert process.stdin
        process.stdin.close()


def wait_until_ready(server: Server, process: subprocess.Popen[bytes], workspace: Workspace) -> None:
    """Wait until the server answers.

    Raises:
        TransientError: it ended, or did not answer within `_READY_WITHIN_SECONDS`; its log says why.
    """
    deadline = time.monotonic() + _READY_WITHIN_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        with contextlib.suppress(OSError, HTTPException), urlopen(server.url + server.health, timeout=5):
            return
        time.sleep(0.2)
    exit_code = process.poll()
    raise TransientError(
        f"{server.name} did not start",
        given="it runs, but does not answer" if exit_code is None else f"it ended with exit code {exit_code}",
        expected=f"an answer at {server.url}{server.health} within {_READY_WITHIN_SECONDS:.0f} s",
        do=f"read {_log_of(server, workspace)}",
    )


def require_running(server: Server, process: subprocess.Popen[bytes], workspace: Workspace) -> None:
    """Raise TransientError if the server ended by itself."""
    exit_code = process.poll()
    if exit_code is not None:
        raise TransientError(
            f"{server.name} ended",
            given=f"exit code {exit_code}",
            expected="a server that runs until Ctrl-C",
            do=f"read {_log_of(server, workspace)}, then start it again",
        )


def _log_of(server: Server, workspace: Workspace) -> Path:
    return workspace.logs / f"{server.name.lower()}-server.log"
