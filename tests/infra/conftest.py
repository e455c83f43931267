"""Services of compose.yaml as plain processes, with the same commands and environment but other addresses."""

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.infra.prefect_project import ROOT, Run, Running, Server, write_flows
from tests.infra.stack.compose_file import Compose
from tests.make.processes import answers, wait_for


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
    return run_server


@contextmanager
def run_server(
    command: list[str], environment: dict[str, str], folder: Path, health_url: str, timeout_seconds: float = 150
) -> Iterator[None]:
    """Run a server during the block, once it is healthy; SIGTERM then has to end it with all its children."""
    log = Path(environment["HOME"]) / "log.txt"
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, env=environment, cwd=folder, stdout=output, stderr=output, start_new_session=True
        )
        try:
            wait_for(lambda: answers(health_url) or process.poll() is not None, timeout_seconds)
            assert answers(health_url), log.read_text(encoding="utf-8", errors="replace")[-4000:]
            yield
            process.send_signal(signal.SIGTERM)
            process.wait(timeout=60)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


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
    write_flows(project)
    (project / "infra").mkdir()
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
