"""A temporary Prefect server for a command without a configured one; it ends with the command.

Prefect starts one on its own, but leaves it running if the command is killed.
"""

import atexit
import contextlib
import socket

from clozeline.orchestration.prefect_adapter import (
    HEALTH,
    SERVER_WITHOUT_SCHEDULES,
    api_url,
    server_command,
    use_temporary_server,
)
from clozeline.orchestration.server_process import HOST, Server, running, wait_until_ready
from clozeline.workspace import Workspace


def ensure_prefect_server(workspace: Workspace) -> None:
    """Make a server available to flow runs: the configured one, or a new one that ends with this process.

    Raises:
        TransientError: the new server did not start; its log says why.
    """
    if api_url():
        return
    server = _server_on(_free_port())
    lifetime = contextlib.ExitStack()
    process = lifetime.enter_context(running(server, workspace))
    atexit.register(lifetime.close)  # not earlier, because Prefect's threads send their last logs until then
    wait_until_ready(server, process, workspace)
    use_temporary_server(f"{server.url}/api")


def _server_on(port: int) -> Server:
    return Server(
        name="Prefect",
        command=server_command(HOST, port),
        port=port,
        health=HEALTH,
        environment=SERVER_WITHOUT_SCHEDULES,  # schedules need a permanent server
    )


def _free_port() -> int:
    with socket.create_server((HOST, 0)) as listener:
        return int(listener.getsockname()[1])
