"""Services of compose.yaml as plain processes, with the same commands and environment but other addresses."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from ruamel.yaml import YAML

from tests.infra.prefect_project import FLOW, WORK, Run, Running, Server

ROOT = Path(__file__).parents[2]
VARIABLE = re.compile(r"\$(?:(?P<escaped>\$)|\{(?P<name>\w+)(?::(?P<rule>[?-])(?P<default>[^}]*))?\})")


def interpolated(text: str, variables: Mapping[str, str]) -> str:
    """Return `text` with `${NAME}`, `${NAME:?}`, `${NAME:-default}` and `$$` replaced as compose specifies."""

    def value(match: re.Match[str]) -> str:
        if match["escaped"]:
            return "$"
        if found := variables.get(match["name"]):
            return found
        assert match["rule"] == "-", f"{match['name']} has no value"
        return match["default"]

    return VARIABLE.sub(value, text)


def read_env_file(path: Path) -> dict[str, str]:
    lines = path.read_text(encoding="utf-8").splitlines()
    return dict(line.partition("=")[::2] for line in lines if line and not line.startswith("#"))


def python_environment(home: Path) -> dict[str, str]:
    """Return the environment of a process of an image: its Python first on the path, no variables of this shell."""
    home.mkdir(parents=True, exist_ok=True)
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    return {"PATH": path, "HOME": str(home), "PYTHONUNBUFFERED": "1", "PYTHONDONTWRITEBYTECODE": "1"}


@dataclass(frozen=True)
class Compose:
    """compose.yaml, with the secrets of one installation."""

    services: dict[str, Any]
    secrets: dict[str, str]
    settings: dict[str, str]

    def command(self, service: str) -> list[str]:
        return [interpolated(word, self.secrets) for word in self.services[service]["command"]]

    def environment(self, service: str, home: Path, **elsewhere: object) -> dict[str, str]:
        """Return the service's environment; `elsewhere` replaces its variables for addresses and folders."""
        given = self.services[service]["environment"]
        assert not set(elsewhere) - set(given), f"compose.yaml sets no {set(elsewhere) - set(given)} for {service}"
        own = {name: interpolated(str(value), self.secrets) for name, value in given.items()}
        moved = {name: str(value) for name, value in elsewhere.items()}
        return python_environment(home) | self.settings | own | moved


@pytest.fixture(scope="session")
def compose() -> Compose:
    content = YAML(typ="safe").load(ROOT / "infra/compose.yaml")
    example = read_env_file(ROOT / "infra/.env.example")
    secrets = {name: value or f"GK{len(name):032x}" for name, value in example.items()}
    return Compose(content["services"], secrets, read_env_file(ROOT / "infra/settings.env"))


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
        "PREFECT_HOME": home / "server",
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
