"""Prefect's server for a command that was given none: started with the command, and gone with it.

Prefect would start one by itself, and a command that is killed would leave it running.
"""

import atexit
import contextlib
import socket

from clozeline.orchestration.prefect_adapter import (
    HEALTH,
    SERVER_WITHOUT_SCHEDULES,
    api_url,
    server_command,
    use_server,
)
from clozeline.orchestration.server_process import HOST, Server, running, wait_until_ready
from clozeline.workspace import Workspace


def ensure_prefect_server(workspace: Workspace) -> None:
    """After this, flow runs have a server: the one that Prefect's settings name, or one that ends with this process.

    Raises:
        TransientError: the server did not start; its log says why.
    """
    if api_url():
        return
    server = _server_on(_free_port())
    lifetime = contextlib.ExitStack()
    process = lifetime.enter_context(running(server, workspace))
    atexit.register(lifetime.close)  # not earlier: until then Prefect's threads send their last logs to it
    wait_until_ready(server, process, workspace)
    use_server(f"{server.url}/api")


def _server_on(port: int) -> Server:
    return Server(
        name="Prefect",
        command=server_command(HOST, port),
        port=port,
        health=HEALTH,
        environment=SERVER_WITHOUT_SCHEDULES,  # they are for a server that stays
    )


def _free_port() -> int:
    with socket.create_server((HOST, 0)) as listener:
        return int(listener.getsockname()[1])
