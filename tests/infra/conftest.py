"""Services of compose.yaml as plain processes, with the same commands and environment but other addresses."""

from collections.abc import Callable, Iterator

import httpx
import pytest

from tests.infra.prefect_project import ROOT, Server, write_flows
from tests.infra.stack.compose_file import Compose
from tests.make.processes import running


@pytest.fixture(scope="session")
def compose() -> Compose:
    return Compose.read()


@pytest.fixture(scope="module")
def server(
    tmp_path_factory: pytest.TempPathFactory, compose: Compose, free_port: Callable[[], int]
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
        yield Server(home / "server", project, compose.command("prefect-deploy"), client, api, environment)
