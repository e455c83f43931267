"""Services of compose.yaml as plain processes, with the same commands and environment but other addresses."""

import os
import shutil
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.infra.prefect_project import FLOW, WORK, Run, Running, Server
from tests.infra.stack.compose_file import Compose

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def compose() -> Compose:
    return Compose.read()


@pytest.fixture(scope="session")
def run_to_end() -> Callable[..., str]:
    """Run a one-shot job; if the job fails, the test fails with its output."""

    def run_to_end(command: list[str], environment: dict[str, str], folder: Path, timeout_seconds: float = 180) -> str:
        done = subprocess.run(
            command, env=environment, cwd=folder, capture_output=True, text=True, timeout=timeout_seconds, check=False
        )
        assert done.returncode == 0, f"{command} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}"
        return done.stdout + done.stderr

    return run_to_end


@pytest.fixture(scope="session")
def running() -> Callable[..., Any]:
    return _running


@contextmanager
def _running(
    command: list[str], environment: dict[str, str], folder: Path, health_url: str, timeout_seconds: float = 150
) -> Iterator[None]:
    """Run a server during the block, once it is healthy; SIGTERM then has to end it with all its children."""
    log = Path(environment["HOME"]) / "log.txt"
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, env=environment, cwd=folder, stdout=output, stderr=output, start_new_session=True
        )
        try:
            _wait_until_healthy(process, health_url, log, timeout_seconds)
            yield
            process.send_signal(signal.SIGTERM)
            process.wait(timeout=60)
        finally:
            if _group_is_alive(process.pid):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _wait_until_healthy(process: subprocess.Popen[bytes], url: str, log: Path, timeout_seconds: float) -> None:
    deadline = time.monotonic() + timeout_seconds
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            time.sleep(0.2)
    raise AssertionError(f"not healthy at {url}:\n{log.read_text(encoding='utf-8', errors='replace')[-4000:]}")


def _group_is_alive(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.fixture(scope="module")
def server(
    tmp_path_factory: pytest.TempPathFactory,
    compose: Compose,
    free_port: Callable[[], int],
    running: Running,
    run_to_end: Run,
) -> Iterator[Server]:
    """A server for the tests of one file."""
    home = tmp_path_factory.mktemp("prefect")
    project = home / "project"
    (project / "flows").mkdir(parents=True)
    (project / "infra").mkdir()
    shutil.copy(ROOT / "flows/__init__.py", project / "flows")
    drift = FLOW.replace("nightly()", 'nightly(url: str = "")').replace("nightly", "drift")
    (project / "flows/drift.py").write_text(drift, encoding="utf-8")
    (project / "flows/nightly.py").write_text(FLOW, encoding="utf-8")
    (project / "flows/work.py").write_text(WORK, encoding="utf-8")
    port = free_port()
    url = f"http://127.0.0.1:{port}/api"
    at_home = {
        "PREFECT_HOME": home / "work/prefect",  # as in a fresh checkout, it does not exist
        "PREFECT_SERVER_API_HOST": "127.0.0.1",
        "PREFECT_SERVER_API_PORT": port,
        "PREFECT_SERVER_DATABASE_CONNECTION_URL": f"sqlite+aiosqlite:///{home}/prefect.db",
        "PREFECT_SERVER_DATABASE_MIGRATE_ON_START": "true",
        "PREFECT_SERVER_UI_STATIC_DIRECTORY": home / "ui",
    }
    environment = compose.environment("prefect", home / "server", **at_home)
    environment["PREFECT_SERVER_SERVICES_LATE_RUNS_AFTER_SECONDS"] = "1"
    access = {"PREFECT_API_URL": url, "PREFECT_HOME": home / "client"}
    client = compose.environment("prefect-deploy", home / "client", **access)
    user, _, password = client["PREFECT_API_AUTH_STRING"].partition(":")
    with (
        running(compose.command("prefect"), environment, ROOT / "infra/prefect", f"{url}/health"),
        httpx.Client(base_url=url, auth=(user, password), timeout=30) as api,
    ):
        yield Server(home / "server", project, compose.command("prefect-deploy"), client, api, run_to_end, environment)
