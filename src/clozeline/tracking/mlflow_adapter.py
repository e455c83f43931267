"""What is used of MLflow beside its documented names; tests/tracking/test_mlflow_adapter.py holds each.

All else goes through `MlflowClient`, `mlflow.entities`, `mlflow.artifacts` and `mlflow.pyfunc`, as they are documented.
The tables of a project's own database are read, never written, in `clozeline.registry.own_database`.
"""

from collections.abc import Sequence
from typing import Any, Final

from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient

PARENT_RUN: Final = "mlflow.parentRunId"
"""The tag that puts a run below another one."""
_OUTDATED: Final = "out-of-date database schema"


def monitors() -> Sequence[Any]:
    """Classes of what looks at the machine: `collect_metrics`, `aggregate_metrics`, `clear_metrics`.

    Raises:
        ImportError: psutil, which the serving install does without, is not there.
    """
    from mlflow.system_metrics.metrics.cpu_monitor import CPUMonitor
    from mlflow.system_metrics.metrics.disk_monitor import DiskMonitor
    from mlflow.system_metrics.metrics.gpu_monitor import GPUMonitor
    from mlflow.system_metrics.metrics.network_monitor import NetworkMonitor

    return CPUMonitor, DiskMonitor, NetworkMonitor, GPUMonitor


def client_of_database(tracking_uri: str) -> MlflowClient:
    """A client of a SQLite database, whose tables are made, or brought to the schema of the installed MLflow.

    A client opens its database when it is made.
    """
    try:
        return MlflowClient(tracking_uri, registry_uri=tracking_uri)
    except MlflowException as error:
        if _OUTDATED not in str(error):
            raise
    from mlflow.db import commands

    commands.main(["upgrade", tracking_uri], standalone_mode=False)
    return MlflowClient(tracking_uri, registry_uri=tracking_uri)
