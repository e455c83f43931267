"""MLflow's and Prefect's servers over the project's own databases, for `clozeline ui`."""

import contextlib
import socket
import sys
import time
from collections.abc import Callable, Mapping

from clozeline.errors import ParamsError
from clozeline.orchestration.prefect_adapter import HEALTH, page_settings
from clozeline.orchestration.server_password import protection, sign_in
from clozeline.orchestration.server_process import HOST, Server, require_running, running, wait_until_ready
from clozeline.tracking.database import prepare
from clozeline.workspace import Workspace, tracking_uri


def serve_until_interrupted(
    workspace: Workspace, *, mlflow_port: int, prefect_port: int, say: Callable[[str], None]
) -> None:
    """Start both servers and wait; Ctrl-C, or the end of this process, ends them.

    Raises:
        ParamsError: a port is taken, or the folder `work` belongs to another user.
        ArtifactError: MLflow's local database is damaged.
        TransientError: a server did not start, or ended; its log says why.
    """
    address = tracking_uri(workspace)
    servers = [_prefect(prefect_port, protection(workspace, prefect_port))]
    if address.startswith("http"):
        say(f"MLflow   {address} (from MLFLOW_TRACKING_URI)")
    else:
        prepare(address)
        servers.insert(0, _mlflow(mlflow_port, address))
    for server in servers:
        _require_free(server)
    with contextlib.ExitStack() as stack:
        started = [(server, stack.enter_context(running(server, workspace))) for server in servers]
        for server, process in started:
            wait_until_ready(server, process, workspace)
            say(f"{server.name:8} {server.url}")
        say(f"Prefect asks for a password: {sign_in(workspace, prefect_port)}")
        say(f"To see flow runs there: export PREFECT_API_URL={_api(prefect_port)}")
        say("Ctrl-C ends both.")
        with contextlib.suppress(KeyboardInterrupt):
            while True:
                for server, process in started:
                    require_running(server, process, workspace)
                time.sleep(0.2)


def _mlflow(port: int, address: str) -> Server:
    module = [sys.executable, "-m", "mlflow", "server", "--workers", "1"]
    return Server(
        name="MLflow",
        command=[*module, "--backend-store-uri", address, "--host", HOST, "--port", str(port)],
        port=port,
        health="/health",
    )


def _prefect(port: int, password: Mapping[str, str]) -> Server:
    command = [sys.executable, "-m", "prefect", "server", "start", "--host", HOST, "--port", str(port)]
    environment = {**page_settings(_api(port)), **password}
    return Server(name="Prefect", command=command, port=port, health=HEALTH, environment=environment)


def _api(prefect_port: int) -> str:
    return f"http://{HOST}:{prefect_port}/api"


def _require_free(server: Server) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, server.port))
        except OSError as error:
            option = f"--{server.name.lower()}-port"
            raise ParamsError(
                f"{server.name} cannot listen on port {server.port}",
                given=str(error),
                expected="a free port",
                do=f"choose another one: clozeline ui {option} {server.port + 1}",
            ) from error
