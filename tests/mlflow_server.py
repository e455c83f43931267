"""A real MLflow server with a database and an artifact folder; a test may stop and start it."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

from clozeline.system.workspace import Workspace
from clozeline.tracking.mlflow import prepare
from tests.postgres_server import running_postgres


class MlflowServer:
    """Listens on one port of the loopback, over a database (by default SQLite) and an artifact folder in `folder`."""

    def __init__(self, folder: Path, port: int, database: str = "") -> None:
        self._folder = folder
        self._database = database or f"sqlite:///{folder / 'server.db'}"
        self._port = port
        self.url = f"http://127.0.0.1:{port}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
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
        deadline = time.monotonic() + 600
        while not self._answers():
            assert self._process.poll() is None, "the server ended"
            assert time.monotonic() < deadline, "the server does not answer"
            time.sleep(0.2)

    def stop(self) -> None:
        if self._process:
            os.killpg(self._process.pid, 9)
            self._process.wait()
            self._process = None

    def _answers(self) -> bool:
        try:
            with urlopen(f"{self.url}/health", timeout=5) as answer:
                return bool(answer.status == 200)
        except (URLError, OSError):
            return False


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
