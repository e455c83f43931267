"""What is used of Prefect beside its documented names; tests/orchestration/test_prefect_adapter.py holds each.

Flows and the rest of this room use `flow`, `task`, `runtime`, loggers, artifacts and the client as they are documented.
"""

import logging
import os
import sys
from typing import Any, Final, cast

from prefect.context import refresh_global_settings_context
from prefect.futures import PrefectFuture
from prefect.settings import get_current_settings
from prefect.task_runners import TaskRunner, ThreadPoolTaskRunner

from clozeline.errors import ClozelineError

HEALTH: Final = "/api/health"
"""Where a server tells that it is ready."""
LOGGERS: Final = ("prefect.flow_runs", "prefect.task_runs")
# The cast: Prefect types a runner by its kind of future, and a flow asks for any.
ONE_AT_A_TIME: Final = cast("TaskRunner[PrefectFuture[Any]]", ThreadPoolTaskRunner[Any](max_workers=1))
_APPLICATION: Final = "prefect.server.api.server:create_app"
# Prefect repeats in these what the record before said, and says for each stage that did not start that it did not.
_REPEATED: Final = ("Finished in state Failed(", "Finished in state NotReady(")


class WithoutTraceback(logging.Filter):
    """Takes the traceback of a `ClozelineError` out of what Prefect logs of it, and what Prefect repeats."""

    def filter(self, record: logging.LogRecord) -> bool:
        if record.exc_info and isinstance(record.exc_info[1], ClozelineError):
            record.msg, record.args = "%s", (str(record.exc_info[1]),)
            record.exc_info = None
        return not (isinstance(record.msg, str) and record.msg.startswith(_REPEATED))


def tell_errors_plainly() -> None:
    """Let flow and task runs tell a problem that a person can act on by its message, once; twice changes nothing."""
    for name in LOGGERS:
        logger = logging.getLogger(name)
        if not any(isinstance(known, WithoutTraceback) for known in logger.filters):
            logger.addFilter(WithoutTraceback())


def api_url() -> str | None:
    """The server that Prefect's settings name."""
    return get_current_settings().api.url


def use_server(url: str) -> None:
    """Let this process, and those it starts, talk to the server at `url` from now on."""
    os.environ["PREFECT_API_URL"] = url
    refresh_global_settings_context()


def server_command(host: str, port: int) -> list[str]:
    """A server and nothing around it: `prefect server start` would start it in a process of its own."""
    return [sys.executable, "-m", "uvicorn", "--factory", _APPLICATION, "--host", host, "--port", str(port)]


SERVER_WITHOUT_SCHEDULES: Final = {
    "PREFECT_SERVER_SERVICES_SCHEDULER_ENABLED": "false",
    "PREFECT_SERVER_SERVICES_LATE_RUNS_ENABLED": "false",
}
