"""A side channel from a stage to its MLflow run, for its curves. It never changes an output and never raises.

The flow passes a run on through two environment variables, `MLFLOW_TRACKING_URI` and `MLFLOW_RUN_ID`. Without them
(`dvc repro` alone) the logger does nothing.
"""

import logging
import os
from collections.abc import Mapping
from typing import Protocol

_LOG = logging.getLogger(__name__)


class RunLogger(Protocol):
    """Interface through which a stage logs to its run."""

    def metrics(self, values: Mapping[str, float], step: int) -> None:
        """Log metric values; steps at or below the last one logged before a resume are dropped."""

    def close(self) -> None:
        """Send the remaining points; warn of the number that could not be sent."""


class NullRunLogger:
    """A logger that tracks nothing."""

    def metrics(self, values: Mapping[str, float], step: int) -> None:
        pass

    def close(self) -> None:
        pass


def run_logger() -> RunLogger:
    """Return a logger for the run that the environment names; without one, a logger that tracks nothing."""
    tracking_uri, run_id = os.environ.get("MLFLOW_TRACKING_URI"), os.environ.get("MLFLOW_RUN_ID")
    if not tracking_uri or not run_id:
        return NullRunLogger()
    try:
        from clozeline.tracking.sender import MlflowRunLogger

        return MlflowRunLogger(tracking_uri, run_id)
    except Exception as error:  # noqa: BLE001  # no error of MLflow may stop a training
        _LOG.warning("MLflow cannot be used (%s): this run's curves are not tracked", error)
        return NullRunLogger()
