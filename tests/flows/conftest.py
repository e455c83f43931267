"""Tools that tell nobody, an address of MLflow for each test, and the one Prefect server of them all."""

from collections.abc import Callable, Iterator

import pytest
from prefect.testing.utilities import prefect_test_harness

from clozeline.workspace import Workspace


@pytest.fixture(autouse=True, scope="session")
def quiet_tools(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No tool calls home; where each keeps its state is a project's own affair."""
    defaults = Workspace(tmp_path_factory.mktemp("state")).defaults()
    with pytest.MonkeyPatch.context() as monkeypatch:
        for name, value in defaults.items():
            monkeypatch.setenv(name, value)
        monkeypatch.delenv("MLFLOW_TRACKING_URI")
        yield


@pytest.fixture(autouse=True)
def own_tracking(monkeypatch: pytest.MonkeyPatch) -> None:
    """The flow sets the address of its project's database where there is none: not for the next test, too."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "")
    monkeypatch.delenv("MLFLOW_TRACKING_URI")


@pytest.fixture(scope="session")
def prefect_server(quiet_tools: None, free_port: Callable[[], int]) -> Iterator[None]:
    """The one Prefect server of all these tests; each worker that runs some has one."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr("prefect.testing.utilities._find_available_port", free_port)
        with prefect_test_harness(server_startup_timeout=120):
            yield
