"""If a server does not start, the error names its exit code or its silence; an unneeded server is ended at once."""

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from clozeline.orchestration import servers
from clozeline.orchestration.servers import HOST, Server, running, wait_until_ready
from clozeline.system import supervisor
from clozeline.system.errors import TransientError
from clozeline.system.workspace import Workspace
from tests.make.processes import wait_for

NO_HTTP = f"""
import socket, sys
with socket.create_server(("{HOST}", int(sys.argv[1]))) as listener:
    while True:
        connection, _ = listener.accept()
        with connection:
            connection.recv(1000)
            connection.sendall(b"this is no HTTP\\r\\n\\r\\n")
"""


def told_of(code: str, port: int, root: Path) -> TransientError:
    server = Server("Odd", [sys.executable, "-c", code, str(port)], port, "/health")
    with subprocess.Popen(server.command) as process:
        try:
            with pytest.raises(TransientError) as told:
                wait_until_ready(server, process, Workspace(root))
        finally:
            process.kill()
    return told.value


def test_a_server_without_child_processes_is_ended_at_once(tmp_path: Path, free_port: Callable[[], int]) -> None:
    server = Server("Idle", [sys.executable, "-c", "import time; time.sleep(600)"], free_port(), "/health")
    with running(server, Workspace(tmp_path)) as process:
        assert wait_for(lambda: len(psutil.Process(process.pid).children()) == 1, 60)
        ended = time.monotonic()
    assert time.monotonic() - ended < supervisor._STAGE_SECONDS


def test_a_server_that_ends_is_reported_with_its_exit_code(tmp_path: Path, free_port: Callable[[], int]) -> None:
    error = told_of("raise SystemExit(7)", free_port(), tmp_path)
    assert error.given == "it ended with exit code 7"
    assert "odd-server.log" in error.do


def test_a_process_that_does_not_speak_http_is_reported(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, free_port: Callable[[], int]
) -> None:
    monkeypatch.setattr(servers, "_READY_WITHIN_SECONDS", 1.5)
    error = told_of(NO_HTTP, free_port(), tmp_path)
    assert error.given == "it runs, but does not answer"
