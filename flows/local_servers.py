"""MLflow's and Prefect's servers over the project's own databases, for a person who wants to look."""

import contextlib
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

from clozeline.errors import ParamsError, TransientError
from clozeline.tracking.database import prepare
from clozeline.workspace import Workspace, tracking_uri
from flows import supervisor
from flows.stage_environment import stage_environment

_HOST = "127.0.0.1"
_READY_WITHIN_SECONDS = 120.0


@dataclass(frozen=True)
class Server:
    """One server, and where it tells that it is ready."""

    name: str
    command: Sequence[str]
    port: int
    health: str

    @property
    def url(self) -> str:
        return f"http://{_HOST}:{self.port}"


def serve_until_interrupted(
    workspace: Workspace, *, mlflow_port: int, prefect_port: int, say: Callable[[str], None]
) -> None:
    """Start both and wait; Ctrl-C, or the end of this process, ends them.

    Raises:
        ParamsError: a port is taken.
        TransientError: a server did not start, or ended by itself; its log says why.
    """
    address = tracking_uri(workspace)
    servers = [_prefect(prefect_port)]
    if address.startswith("http"):
        say(f"MLflow   {address} (of MLFLOW_TRACKING_URI)")
    else:
        prepare(address)
        servers.insert(0, _mlflow(mlflow_port, address))
    for server in servers:
        _require_free(server)
    with contextlib.ExitStack() as stack:
        started = [(server, stack.enter_context(_running(server, workspace))) for server in servers]
        for server, process in started:
            _wait_until_ready(server, process, workspace)
            say(f"{server.name:8} {server.url}")
        say(f"Flow runs show there with: export PREFECT_API_URL=http://{_HOST}:{prefect_port}/api")
        say("Ctrl-C ends both.")
        with contextlib.suppress(KeyboardInterrupt):
            while all(process.poll() is None for _, process in started):
                time.sleep(0.2)


def _mlflow(port: int, address: str) -> Server:
    module = [sys.executable, "-m", "mlflow", "server", "--workers", "1"]
    return Server(
        name="MLflow",
        command=[*module, "--backend-store-uri", address, "--host", _HOST, "--port", str(port)],
        port=port,
        health="/health",
    )


def _prefect(port: int) -> Server:
    command = [sys.executable, "-m", "prefect", "server", "start", "--host", _HOST, "--port", str(port)]
    return Server(name="Prefect", command=command, port=port, health="/api/health")


def _require_free(server: Server) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((_HOST, server.port))
        except OSError as error:
            option = f"--{server.name.lower()}-port"
            raise ParamsError(
                f"{server.name} cannot listen on port {server.port}",
                given=str(error),
                expected="a free port",
                do=f"choose another one: clozeline ui {option} {server.port + 1}",
            ) from error


@contextlib.contextmanager
def _running(server: Server, workspace: Workspace) -> Iterator[subprocess.Popen[bytes]]:
    log = _log_of(server, workspace)
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as file:
        process = subprocess.Popen(
            [sys.executable, supervisor.__file__, *server.command],
            cwd=workspace.root,
            env=stage_environment(workspace, {}),
            stdin=subprocess.PIPE,
            stdout=file,
            stderr=file,
            start_new_session=True,  # Ctrl-C is ours: we end it in order
        )
    try:
        yield process
    finally:
        process.terminate()
        process.wait()
        assert process.stdin
        process.stdin.close()


def _wait_until_ready(server: Server, process: subprocess.Popen[bytes], workspace: Workspace) -> None:
    deadline = time.monotonic() + _READY_WITHIN_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        with contextlib.suppress(URLError, OSError), urlopen(server.url + server.health, timeout=5):
            return
        time.sleep(0.2)
    raise TransientError(
        f"{server.name} did not start",
        given=f"exit code {process.poll()}",
        expected=f"an answer at {server.url}{server.health} within {_READY_WITHIN_SECONDS:.0f} s",
        do=f"read {_log_of(server, workspace)}",
    )


def _log_of(server: Server, workspace: Workspace) -> Path:
    return workspace.logs / f"{server.name.lower()}-server.log"
