"""Tools without telemetry, a fresh MLflow address for each test, and one Prefect server for all tests."""

from collections.abc import Callable, Iterator

import pytest

from clozeline.system.workspace import Workspace
from tests.make.session import PutDatabase
from tests.registry.conftest import classifier_package as classifier_package
from tests.registry.conftest import encoder_package as encoder_package


@pytest.fixture(autouse=True, scope="session")
def quiet_tools(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Switch off the telemetry of all tools; each project decides where MLflow keeps its state."""
    defaults = Workspace(tmp_path_factory.mktemp("state")).defaults()
    with pytest.MonkeyPatch.context() as monkeypatch:
        for name, value in defaults.items():
            monkeypatch.setenv(name, value)
        monkeypatch.delenv("MLFLOW_TRACKING_URI")
        yield


@pytest.fixture(autouse=True)
def own_tracking(monkeypatch: pytest.MonkeyPatch) -> None:
    """Undo after each test that the flow sets MLflow's address if there is none."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "")
    monkeypatch.delenv("MLFLOW_TRACKING_URI")


@pytest.fixture(scope="session")
def prefect_server(
    quiet_tools: None,
    free_port: Callable[[], int],
    put_prefect_database: PutDatabase,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[None]:
    """The single Prefect server of all these tests, one in each pytest worker. `make check` needs none: the import of
    the server takes 2 s.
    """
    from prefect.testing.utilities import prefect_test_harness

    folder = tmp_path_factory.mktemp("prefect-server")
    put_prefect_database(folder / "prefect-test.db")
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr("prefect.testing.utilities.mkdtemp", lambda: str(folder))
        monkeypatch.setattr("prefect.testing.utilities._find_available_port", free_port)
        with prefect_test_harness(server_startup_timeout=600):
            yield
