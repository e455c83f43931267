"""The servers of the month, started once: MLflow, Prefect with its worker, an S3 store, and a receiver of alerts."""

import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.drill.prefect import Prefect, prefect_over
from tests.drill.project import said, start
from tests.make.processes import wait_for
from tests.make.servers import MlflowServer, Webhooks, answering, held_ports
from tests.make.stores import KEYS, ObjectStore
from tests.month.scenario import make_project

_LONGEST_SECONDS = 1800.0
_ALERTS = "alerts"


@dataclass(frozen=True)
class Installation:
    """The project and its servers."""

    folder: Path
    root: Path
    variables: Mapping[str, str]  # environment of the worker and of commands, beside the defaults
    mlflow: MlflowServer
    prefect: Prefect
    store: ObjectStore
    alerts: Webhooks

    def start(self, *command: str, root: Path | None = None) -> subprocess.Popen[bytes]:
        """Start `python -m …` in the project, or in the copy of it in `root`."""
        root = root or self.root
        server = {"PREFECT_API_URL": self.prefect.url, "PREFECT_API_AUTH_STRING": self.prefect.password}
        return start(root, *command, variables={**self.variables, "PYTHONPATH": str(root / "src"), **server})

    def run(self, *command: str) -> None:
        """Run `python -m …` in the project."""
        ended = self.start(*command).wait(_LONGEST_SECONDS)
        assert ended == 0, f"{command} ended with {ended}:\n{said(self.root)[-3000:]}"

    def alerts_about(self, run: str, state: str) -> list[str]:
        """Return the messages about this state of the run with this name."""
        return [text for text in self.alerts.texts(_ALERTS) if run in text and f": {state}*" in text]

    def wait_until_quiet(self) -> None:
        """Wait until every run has ended, and each crashed one was followed by another."""
        assert wait_for(self._is_quiet, _LONGEST_SECONDS, every_seconds=2), self.prefect.logs()

    def _is_quiet(self) -> bool:
        states = [run["state"]["type"] for run in self.prefect.runs("nightly", "drift")]
        return states[-1] != "CRASHED" and not set(states) & {"SCHEDULED", "PENDING", "RUNNING"}


@contextmanager
def running_installation(folder: Path) -> Iterator[Installation]:
    """Yield the servers over a new project in `folder`."""
    (folder / "mlflow").mkdir(parents=True)
    with held_ports() as free_port, ObjectStore().serving() as store, answering(Webhooks()) as alerts:
        mlflow = MlflowServer(folder / "mlflow", free_port())
        os.environ.update(KEYS, MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR="false")
        root = make_project(folder / "project", store.url)
        variables = {
            **KEYS,
            "CLOZELINE_SLACK_URL": alerts.url(_ALERTS),
            "MLFLOW_TRACKING_URI": mlflow.url,
            "PYTHONPATH": str(root / "src"),
        }
        try:
            mlflow.start()
            with prefect_over(root, folder / "prefect", variables) as prefect:
                yield Installation(folder, root, variables, mlflow, prefect, store, alerts)
        finally:
            mlflow.stop()
