"""Servers of a test's own: ports for them, PostgreSQL, MLflow, and a receiver of webhooks."""

import contextlib
import json
import os
import pwd
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socketserver import BaseServer
from typing import Any, TypeVar

from clozeline.system.workspace import Workspace
from tests.make.processes import answers, wait_for


@contextlib.contextmanager
def held_ports() -> Iterator[Callable[[], int]]:
    """`with held_ports() as free_port`: each `free_port()` is a port that no one else is given until the block ends.

    A socket stays bound to it without listening, so the kernel never assigns it as a free port. A server that binds it
    by number with SO_REUSEADDR, as servers do, still can: only one of the two sockets listens.
    """
    with contextlib.ExitStack() as stack:

        def free_port() -> int:
            holder = stack.enter_context(socket.socket())
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            holder.bind(("127.0.0.1", 0))
            port: int = holder.getsockname()[1]
            return port

        yield free_port


@dataclass(frozen=True)
class Postgres:
    binaries: Path
    data: Path
    port: int
    # User that runs PostgreSQL, which refuses root; None: the user of this process, which is not root.
    user: str | None

    @property
    def database(self) -> str:
        """Address of the database `postgres`, as SQLAlchemy writes it."""
        return f"postgresql+psycopg://postgres@/postgres?host={self.data}&port={self.port}"

    def run(self, program: str, *arguments: str) -> None:
        subprocess.run(
            [str(self.binaries / program), *arguments],
            user=self.user,
            cwd=self.data,
            env={"LC_ALL": "C.UTF-8", "PATH": os.environ["PATH"]},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            check=True,
        )


def postgres_binaries() -> Path:
    versions = Path("/usr/lib/postgresql").glob("*/bin/postgres")
    if found := sorted(versions, key=lambda path: int(path.parts[-3])):
        return found[-1].parent
    if on_path := shutil.which("postgres"):
        return Path(on_path).parent
    raise AssertionError("PostgreSQL is not installed: `make system`, or `apt-get install postgresql`")


@contextmanager
def running_postgres(port: int) -> Iterator[Postgres]:
    """Run a new server during the block; its superuser `postgres` enters by the socket in its folder."""
    # Not under tmp_path: root owns the folders above it, and PostgreSQL's user may not enter them.
    with tempfile.TemporaryDirectory(prefix="postgres-", dir="/tmp") as folder:
        data = Path(folder)
        user = "nobody" if os.geteuid() == 0 else None
        if user is not None:
            os.chown(data, pwd.getpwnam(user).pw_uid, -1)
        server = Postgres(postgres_binaries(), data, port, user)
        server.run("initdb", "--pgdata", ".", "--username", "postgres", "--auth", "trust", "--no-sync")
        # Connections by TCP need the password, as in the container.
        (data / "pg_hba.conf").write_text("local all postgres trust\nhost all all 127.0.0.1/32 scram-sha-256\n")
        options = f"-p {server.port} -c listen_addresses=127.0.0.1 -c unix_socket_directories={data} -c fsync=off"
        server.run("pg_ctl", "start", "--pgdata", ".", "--wait", "--log", "log.txt", "--options", options)
        try:
            yield server
        finally:
            server.run("pg_ctl", "stop", "--pgdata", ".", "--mode", "immediate")


class MlflowServer:
    """Listens on one port of the loopback, over a database (by default SQLite) and an artifact folder in `folder`."""

    def __init__(self, folder: Path, port: int, database: str = "") -> None:
        self._folder = folder
        self._database = database or f"sqlite:///{folder / 'server.db'}"
        self._port = port
        self.url = f"http://127.0.0.1:{port}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        from clozeline.tracking.mlflow import prepare  # MLflow takes a second to import

        prepare(self._database)
        options = ["--backend-store-uri", self._database, "--artifacts-destination", str(self._folder / "artifacts")]
        command = [sys.executable, "-m", "mlflow", "server", "--workers", "1", *options]
        self._process = subprocess.Popen(
            [*command, "--host", "127.0.0.1", "--port", str(self._port)],
            cwd=self._folder,
            env={**os.environ, **Workspace(self._folder).defaults(), "MLFLOW_TRACKING_URI": ""},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        process = self._process
        wait_for(lambda: answers(f"{self.url}/health") or process.poll() is not None, 600)
        assert answers(f"{self.url}/health"), f"the server does not answer, and its exit code is {process.poll()}"

    def stop(self) -> None:
        if self._process:
            os.killpg(self._process.pid, 9)
            self._process.wait()
            self._process = None


@contextmanager
def server_over_postgres(folder: Path, free_port: Callable[[], int]) -> Iterator[MlflowServer]:
    """Run a server over a new PostgreSQL during the block."""
    with running_postgres(free_port()) as postgres:
        server = MlflowServer(folder, free_port(), postgres.database)
        try:
            server.start()
            yield server
        finally:
            server.stop()


AnyServer = TypeVar("AnyServer", bound=BaseServer)


@contextmanager
def answering(server: AnyServer) -> Iterator[AnyServer]:
    """Let a server answer in a thread of this process during the block."""
    with server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield server
        server.shutdown()


class Handler(BaseHTTPRequestHandler):
    """Answers by `reply`, and keeps standard error for the tests."""

    protocol_version = "HTTP/1.1"

    def reply(self, status: int, body: bytes = b"") -> None:
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *told: object) -> None:
        pass


class Webhooks(ThreadingHTTPServer):
    """A receiver that keeps what it accepts, by path, after it has answered 500 as often as told."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Webhook)
        self.accepted: list[tuple[str, dict[str, Any]]] = []
        self.num_refused = 0
        self.refuse_next = 0

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/{path}"

    def texts(self, path: str) -> list[str]:
        return [json.dumps(message) for where, message in self.accepted if where == f"/{path}"]


class _Webhook(Handler):
    server: Webhooks

    def do_POST(self) -> None:
        message = json.loads(self.rfile.read(int(self.headers["content-length"])))
        is_refused = self.server.refuse_next > 0
        if is_refused:
            self.server.refuse_next -= 1
            self.server.num_refused += 1
        else:
            self.server.accepted.append((self.path, message))
        self.reply(500 if is_refused else 200)
