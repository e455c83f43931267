"""Servers of MLflow and Prefect on this machine, for `clozeline ui` and for one command.

Under the supervisor no server outlives ours, however ours ends.

`clozeline ui` serves the project's own databases. A command uses the configured Prefect server, or a temporary one that
ends with the command: Prefect starts one on its own, but leaves it running if the command is killed, and lets every
local user in. Without a password a server obeys every local user and every page in a browser: its API sets the command
that a worker runs, and hands out the addresses of alerts.
"""

import atexit
import os
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from http.client import HTTPException
from pathlib import Path
from urllib.request import urlopen

from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.exceptions import PrefectHTTPStatusError

from clozeline.orchestration import prefect_adapter, stage_process
from clozeline.orchestration.prefect_adapter import HEALTH, SERVER_PASSWORD, api_url, has_server_password
from clozeline.system import processes
from clozeline.system.errors import ParamsError, TransientError, without_secrets
from clozeline.system.files import held_beside
from clozeline.system.workspace import Workspace, tracking_uri
from clozeline.tracking.mlflow import prepare

HOST = "127.0.0.1"
# On a busy machine a server starts within minutes. One that ends by itself is noticed at once.
_READY_WITHIN_SECONDS = 300.0


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


@contextmanager
def running(server: Server, workspace: Workspace) -> Iterator[subprocess.Popen[bytes]]:
    """Run the server during the block. If this process is killed, the supervisor notices and ends the server."""
    log = _log_of(server, workspace)
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as file:
        process = processes.start(
            server.command,
            folder=workspace.root,
            environment=stage_process.stage_environment(workspace, server.environment),
            output=file.fileno(),
            errors=file.fileno(),
        )
    try:
        yield process
    finally:
        processes.end(process)


def wait_until_ready(server: Server, process: subprocess.Popen[bytes], workspace: Workspace) -> None:
    """Wait until the server answers.

    Raises:
        TransientError: it ended, or did not answer within `_READY_WITHIN_SECONDS`; its log says why.
    """
    deadline = time.monotonic() + _READY_WITHIN_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        with suppress(OSError, HTTPException), urlopen(server.url + server.health, timeout=5):
            return
        time.sleep(0.2)
    require_running(server, process, workspace)
    problem = f"{server.name} did not start: it runs, but gives no answer at {server.url}{server.health}"
    raise TransientError(problem, do=f"read {_log_of(server, workspace)}")


def require_running(server: Server, process: subprocess.Popen[bytes], workspace: Workspace) -> None:
    """Raise TransientError if the server ended by itself."""
    exit_code = process.poll()
    if exit_code is not None:
        problem = f"{server.name} ended with exit code {exit_code}"
        raise TransientError(problem, do=f"read {_log_of(server, workspace)}, then start it again")


def _log_of(server: Server, workspace: Workspace) -> Path:
    return workspace.logs / f"{server.name.lower()}-server.log"


def new_password() -> str:
    """Return a random password in Prefect's form, `USER:PASSWORD`."""
    return f"clozeline:{secrets.token_urlsafe(32)}"


def protection(workspace: Workspace, port: int) -> dict[str, str]:
    """Return the environment of a server that asks for the project's password; empty if Prefect's settings have one.

    The first call for a port makes the password, and closes the folder `work` to other users.

    Raises:
        ParamsError: the folder `work` belongs to another user.
    """
    return {} if has_server_password() else {SERVER_PASSWORD: _kept_password(workspace, port)}


def sign_in(workspace: Workspace, port: int) -> str:
    """Return what to type where Prefect's page asks for a password."""
    if has_server_password():
        return f"sign in with the value of {SERVER_PASSWORD}"
    return f"sign in with the line in {workspace.prefect_password(port).relative_to(workspace.root)}"


def _kept_password(workspace: Workspace, port: int) -> str:
    try:
        workspace.close_to_others()
    except PermissionError as error:
        raise ParamsError(
            f"{workspace.work}, which holds the password of Prefect's server, is open to others and not yours",
            do="start the server as its owner, or set PREFECT_SERVER_API_AUTH_STRING=USER:PASSWORD",
        ) from error
    file = workspace.prefect_password(port)
    if not file.exists():
        with held_beside(file) as folder:
            new = folder / file.name
            new.touch(mode=0o600)
            new.write_text(f"{new_password()}\n", encoding="utf-8")
            with suppress(FileExistsError):  # another server was faster; unlike a rename, a link replaces nothing
                os.link(new, file)
    file.chmod(0o600)
    return file.read_text(encoding="utf-8").strip()


def serve_until_interrupted(
    workspace: Workspace, *, mlflow_port: int, prefect_port: int, say: Callable[[str], None]
) -> None:
    """Start both servers and wait; Ctrl-C, or the end of this process, ends them.

    Raises:
        ParamsError: a port is taken, or the folder `work` belongs to another user.
        ArtifactError: MLflow's local database is damaged.
        TransientError: a server did not start, or ended; its log says why.
    """
    address, api = tracking_uri(workspace), f"http://{HOST}:{prefect_port}/api"
    command = [sys.executable, "-m", "prefect", "server", "start", "--host", HOST, "--port", str(prefect_port)]
    environment = {**prefect_adapter.page_settings(api), **protection(workspace, prefect_port)}
    servers = [Server("Prefect", command, prefect_port, HEALTH, environment)]
    if address.startswith("http"):
        say(f"MLflow   {without_secrets(address)} (from MLFLOW_TRACKING_URI)")
    else:
        prepare(address)
        command = [sys.executable, "-m", "mlflow", "server", "--workers", "1", "--backend-store-uri", address]
        command += ["--host", HOST, "--port", str(mlflow_port)]
        servers.insert(0, Server("MLflow", command, mlflow_port, "/health"))
    for server in servers:
        try:
            socket.create_server((HOST, server.port)).close()
        except OSError as error:
            raise ParamsError(
                f"{server.name} cannot listen on port {server.port}: {error}",
                do=f"choose another one: clozeline ui --{server.name.lower()}-port {server.port + 1}",
            ) from error
    with ExitStack() as stack:
        started = [(server, stack.enter_context(running(server, workspace))) for server in servers]
        for server, process in started:
            wait_until_ready(server, process, workspace)
            say(f"{server.name:8} {server.url}")
        say(f"Prefect asks for a password: {sign_in(workspace, prefect_port)}")
        say(f"To see flow runs there: export PREFECT_API_URL={api}")
        say("Ctrl-C ends both.")
        with suppress(KeyboardInterrupt):
            while True:
                for server, process in started:
                    require_running(server, process, workspace)
                time.sleep(0.2)


def ensure_prefect_server(workspace: Workspace) -> None:
    """Make a server available to flow runs: the configured one, or a new one that ends with this process.

    Raises:
        ParamsError: the configured server refuses the password.
        TransientError: the configured server does not answer, or the new one did not start; its log says why.
    """
    if api_url():
        with answering_server():
            return
    password = new_password()
    with socket.create_server((HOST, 0)) as listener:
        port = int(listener.getsockname()[1])
    # Schedules need a permanent server.
    environment = {**prefect_adapter.SERVER_WITHOUT_SCHEDULES, SERVER_PASSWORD: password}
    server = Server("Prefect", prefect_adapter.server_command(HOST, port), port, HEALTH, environment)
    lifetime = ExitStack()
    process = lifetime.enter_context(running(server, workspace))
    atexit.register(lifetime.close)  # not earlier, because Prefect's threads send their last logs until then
    wait_until_ready(server, process, workspace)
    prefect_adapter.use_temporary_server(f"{server.url}/api", password)


@contextmanager
def answering_server() -> Iterator[SyncPrefectClient]:
    """Yield a client of the server at PREFECT_API_URL.

    Without that setting Prefect would use a server of its own that ends with this process.

    Raises:
        ParamsError: PREFECT_API_URL is not set, or the server refuses the password.
        TransientError: the server does not answer.
    """
    if api_url() is None:
        problem = "no Prefect server is known: PREFECT_API_URL is not set"
        raise ParamsError(problem, do="start one with `python infra/prefect/start_server.py`, then set PREFECT_API_URL")
    with get_client(sync_client=True) as client:
        if (failure := client.api_healthcheck()) is not None:
            raise TransientError(
                f"the Prefect server at PREFECT_API_URL={client.api_url} does not answer: {failure}",
                do="start it (`python infra/prefect/start_server.py`) or correct PREFECT_API_URL",
            )
        try:
            client.hello()  # unlike the health check, this needs the password
        except PrefectHTTPStatusError as error:
            if error.response.status_code != 401:
                raise
            raise ParamsError(
                f"the Prefect server at {client.api_url} (PREFECT_API_URL) refuses the password",
                do="`export PREFECT_API_AUTH_STRING=$(cat FILE)`; FILE is work/prefect-PORT.password of its project",
            ) from error
        yield client
