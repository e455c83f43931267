"""Prefect's server for a command that was given none: started with the command, and gone with it.

Prefect would start one by itself, and a command that is killed would leave it running.
"""

import atexit
import contextlib
import os
import socket
import sys

from prefect.context import refresh_global_settings_context
from prefect.settings import PREFECT_API_URL

from clozeline.workspace import Workspace
from flows.server_process import HOST, Server, running, wait_until_ready


def ensure_prefect_server(workspace: Workspace) -> None:
    """After this, flow runs have a server: the one that Prefect's settings name, or one that ends with this process.

    Raises:
        TransientError: the server did not start; its log says why.
    """
    if PREFECT_API_URL.value():
        return
    server = _server_on(_free_port())
    lifetime = contextlib.ExitStack()
    process = lifetime.enter_context(running(server, workspace))
    atexit.register(lifetime.close)  # not earlier: until then Prefect's threads send their last logs to it
    wait_until_ready(server, process, workspace)
    os.environ["PREFECT_API_URL"] = f"{server.url}/api"
    refresh_global_settings_context()


def _server_on(port: int) -> Server:
    application = ["--factory", "prefect.server.api.server:create_app"]
    return Server(
        name="Prefect",
        command=[sys.executable, "-m", "uvicorn", *application, "--host", HOST, "--port", str(port)],
        port=port,
        health="/api/health",
        environment={  # schedules are for a server that stays
            "PREFECT_SERVER_SERVICES_SCHEDULER_ENABLED": "false",
            "PREFECT_SERVER_SERVICES_LATE_RUNS_ENABLED": "false",
        },
    )


def _free_port() -> int:
    with socket.create_server((HOST, 0)) as listener:
        return int(listener.getsockname()[1])
