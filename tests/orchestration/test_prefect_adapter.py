"""The adapter's assumptions about the installed Prefect; a failing test shows what an upgrade changed."""

import importlib
import inspect
import logging
import signal
import subprocess
import sys
from base64 import b64encode
from collections.abc import Callable
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
from prefect import flow_engine, task_engine
from prefect.client.orchestration import SyncPrefectClient
from prefect.exceptions import TerminationSignal
from prefect.settings import Settings
from prefect.states import Failed

from clozeline.orchestration import prefect_adapter as adapter
from clozeline.orchestration import servers
from clozeline.system.errors import DataError
from clozeline.system.workspace import Workspace

FLOWS = inspect.getsource(flow_engine)


def test_the_server_command_names_an_existing_application_factory() -> None:
    module, _, name = adapter._APPLICATION.partition(":")
    assert callable(getattr(importlib.import_module(module), name))


def test_the_settings_that_stop_schedules_exist_in_prefect(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in adapter.SERVER_WITHOUT_SCHEDULES.items():
        monkeypatch.setenv(name, value)
    services = Settings().server.services
    assert (services.scheduler.enabled, services.late_runs.enabled) == (False, False)


def test_a_server_address_set_after_import_is_used() -> None:
    code = (
        "from clozeline.orchestration.prefect_adapter import api_url, use_temporary_server\n"
        "assert api_url() is None\n"
        "use_temporary_server('http://127.0.0.1:9/api', 'ada:lovelace')\n"
        "from prefect.client.orchestration import get_client\n"
        "client = get_client(sync_client=True)\n"
        "print(api_url(), client.api_url, client._client.headers['Authorization'].split()[1])"
    )
    environment = {"PATH": "", "PREFECT_HOME": "unused", "PYTHONPATH": str(Path(adapter.__file__).parents[2])}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    password = b64encode(b"ada:lovelace").decode()
    assert done.stdout.split() == ["http://127.0.0.1:9/api", "http://127.0.0.1:9/api/", password], done.stderr


def test_a_flow_runs_one_stage_at_a_time_and_several_on_a_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prefect's engine starts each flow run with a duplicate of the runner."""
    assert "self.flow.task_runner.duplicate()" in FLOWS
    monkeypatch.delenv("CLOZELINE_CLUSTER", raising=False)
    assert adapter.STAGES.duplicate()._max_workers == 1
    monkeypatch.setenv("CLOZELINE_CLUSTER", "ray://auto")
    assert adapter.STAGES.duplicate()._max_workers > 1


def test_what_prefect_logs_of_an_end_and_a_crash_starts_with_the_filtered_prefix() -> None:
    """The engines of flows and of tasks log a state after these words."""
    for engine in (flow_engine, task_engine):
        assert 'f"Finished in state {display_state}"' in inspect.getsource(engine)
    assert 'f"Crash detected! {state.message}"' in FLOWS
    shown = [f"Finished in state {Failed(message='the reason')}"]
    for signal_of in (KeyboardInterrupt(), TerminationSignal(signal.SIGTERM)):
        state = task_engine.exception_to_crashed_state_sync(signal_of)
        shown += [f"Crash detected! {state.message}", f"Finished in state {state}"]
    assert [line for line in shown if not line.startswith(adapter._REPEATED)] == []


def test_prefect_log_lines_with_links_have_the_filtered_prefix_and_are_dropped(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert 'f"Beginning {run_type} run {' in FLOWS
    assert 'f"View at {flow_run_url}"' in FLOWS
    told = logging.getLogger("told")
    told.addFilter(adapter.WithoutLinks())
    with caplog.at_level(logging.INFO, logger="told"):
        for line in ("Beginning flow run 'a' for flow 'b'", "View at http://127.0.0.1:1/runs/1", "upper: executed"):
            told.info(line)
    assert caplog.messages == ["upper: executed"]


@pytest.mark.parametrize("name", adapter.LOGGERS)
def test_a_problem_shows_its_message_once(
    name: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    adapter.tell_errors_plainly()
    adapter.tell_errors_plainly()
    logger = logging.getLogger(name)
    assert sum(isinstance(known, adapter.WithoutTraceback) for known in logger.filters) == 1
    monkeypatch.setattr(logger, "handlers", [])  # Prefect's own handler needs a flow run
    monkeypatch.setattr(logger, "propagate", True)
    problem = DataError("it is bad", given="bad", expected="good", do="mend it")
    with caplog.at_level(logging.INFO, logger=name):
        for _ in range(2):
            logger.error("Encountered an exception", exc_info=(DataError, problem, None))
        logger.error("Finished in state Failed('it is bad')")
        logger.error("Encountered an exception", exc_info=(KeyError, KeyError("a bug"), None))
    told, bug = caplog.records
    assert (told.getMessage(), told.exc_info) == (f"error: {problem}", None)
    assert problem.is_reported, "so that the command does not log it again"
    assert bug.exc_info, "a bug keeps its traceback"


def test_automations_of_the_file_have_the_type_that_the_client_sends() -> None:
    sent = inspect.signature(SyncPrefectClient.create_automation).parameters["automation"].annotation
    assert "AutomationCore" in str(sent)
    assert set(adapter.AutomationCore.model_fields) >= {"name", "description", "trigger", "actions"}


def test_the_prefect_server_answers_strangers_at_the_health_path_alone(
    tmp_path: Path, free_port: Callable[[], int]
) -> None:
    port, workspace = free_port(), Workspace(tmp_path)
    environment = {"PREFECT_HOME": str(tmp_path / "prefect"), adapter.SERVER_PASSWORD: "ada:lovelace"}
    command = adapter.server_command(servers.HOST, port)
    server = servers.Server("Prefect", command, port, adapter.HEALTH, environment)
    with servers.running(server, workspace) as process:
        servers.wait_until_ready(server, process, workspace)
        with urlopen(server.url + adapter.HEALTH, timeout=60) as answer:
            assert answer.read() == b"true"
        with pytest.raises(HTTPError, match="401"):
            urlopen(f"{server.url}/api/hello", timeout=60)
