"""The adapter's assumptions about the installed Prefect; a failing test shows what an upgrade changed."""

import inspect
import logging

import pytest
from prefect import flow_engine
from prefect.settings import Settings

from clozeline.orchestration import prefect_adapter as adapter
from clozeline.system.errors import DataError


def test_the_settings_that_stop_schedules_exist_in_prefect(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in adapter.SERVER_WITHOUT_SCHEDULES.items():
        monkeypatch.setenv(name, value)
    services = Settings().server.services
    assert (services.scheduler.enabled, services.late_runs.enabled) == (False, False)


def test_a_flow_runs_one_stage_at_a_time_and_several_on_a_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prefect's engine starts each flow run with a duplicate of the runner."""
    assert "self.flow.task_runner.duplicate()" in inspect.getsource(flow_engine)
    monkeypatch.delenv("CLOZELINE_CLUSTER", raising=False)
    assert adapter.STAGES.duplicate()._max_workers == 1
    monkeypatch.setenv("CLOZELINE_CLUSTER", "ray://auto")
    assert adapter.STAGES.duplicate()._max_workers > 1


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
        logger.error("Encountered an exception", exc_info=(DataError, problem, None))
        logger.error("Finished in state Failed('it is bad')")
        logger.error("Encountered an exception", exc_info=(KeyError, KeyError("a bug"), None))
    told, bug = caplog.records
    assert (told.getMessage(), told.exc_info) == (f"error: {problem}", None)
    assert problem.is_reported, "so that the command does not log it again"
    assert bug.exc_info, "a bug keeps its traceback"
