"""The Prefect server of a command: the configured one, or a temporary one that ends with the command.

Prefect starts one on its own, but leaves it running if the command is killed, and lets every local user in.
"""

import atexit
import contextlib
import socket
from collections.abc import Iterator

from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.exceptions import PrefectHTTPStatusError

from clozeline.errors import ParamsError, TransientError
from clozeline.orchestration.prefect_adapter import (
    HEALTH,
    SERVER_WITHOUT_SCHEDULES,
    api_url,
    server_command,
    server_password,
    use_temporary_server,
)
from clozeline.orchestration.server_password import new_password
from clozeline.orchestration.server_process import HOST, Server, running, wait_until_ready
from clozeline.workspace import Workspace


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
    server = _server_on(_free_port(), password)
    lifetime = contextlib.ExitStack()
    process = lifetime.enter_context(running(server, workspace))
    atexit.register(lifetime.close)  # not earlier, because Prefect's threads send their last logs until then
    wait_until_ready(server, process, workspace)
    use_temporary_server(f"{server.url}/api", password)


@contextlib.contextmanager
def answering_server() -> Iterator[SyncPrefectClient]:
    """Yield a client of the server at PREFECT_API_URL.

    Without that setting Prefect would use a server of its own that ends with this process.

    Raises:
        ParamsError: PREFECT_API_URL is not set, or the server refuses the password.
        TransientError: the server does not answer.
    """
    if api_url() is None:
        raise ParamsError(
            "no Prefect server is known",
            given="PREFECT_API_URL is not set",
            expected="the address of a running server, such as http://127.0.0.1:4200/api",
            do="start one with `python infra/prefect/start_server.py`, then set PREFECT_API_URL",
        )
    with get_client(sync_client=True) as client:
        if (failure := client.api_healthcheck()) is not None:
            raise TransientError(
                "the Prefect server does not answer",
                given=f"PREFECT_API_URL={client.api_url}: {failure}",
                expected="a Prefect server at that address",
                do="start it (`python infra/prefect/start_server.py`) or correct PREFECT_API_URL",
            )
        _require_access(client)
        yield client


def _require_access(client: SyncPrefectClient) -> None:
    """Ask what needs the password, unlike the health check."""
    try:
        client.hello()
    except PrefectHTTPStatusError as error:
        if error.response.status_code != 401:
            raise
        raise ParamsError(
            "the Prefect server refuses the password",
            given=f"PREFECT_API_URL={client.api_url}, which is no server of this project, or has another password",
            expected="its password in PREFECT_API_AUTH_STRING",
            do="`export PREFECT_API_AUTH_STRING=$(cat FILE)`; FILE is work/prefect-PORT.password of the project in"
            " whose folder it was started",
        ) from error


def _server_on(port: int, password: str) -> Server:
    return Server(
        name="Prefect",
        command=server_command(HOST, port),
        port=port,
        health=HEALTH,
        environment={**SERVER_WITHOUT_SCHEDULES, **server_password(password)},  # schedules need a permanent server
    )


def _free_port() -> int:
    with socket.create_server((HOST, 0)) as listener:
        return int(listener.getsockname()[1])
