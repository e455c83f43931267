"""Where a project keeps what is its own and in no cache: runs, logs, locks, and the settings of the tools it starts."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

# Nothing calls home unless a person asks for it, and no first start is cut short on a slow processor.
_QUIET_TOOLS = {
    "DO_NOT_TRACK": "true",  # MLflow reads the word, other tools any value
    "DVC_NO_ANALYTICS": "1",
    "GIT_PYTHON_REFRESH": "quiet",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "MLFLOW_LOGGING_LEVEL": "WARNING",
    "MLFLOW_MODEL_CATALOG_URI": "",
    "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",  # workers for jobs on traces, which nothing here makes
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "ORT_DISABLE_TELEMETRY": "1",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "120",
}
_LOOPBACK = ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True)
class Workspace:
    """A project's folder: the one with dvc.yaml and params.yaml."""

    root: Path

    @property
    def work(self) -> Path:
        return self.root / "work"

    @property
    def logs(self) -> Path:
        return self.work / "logs"

    @property
    def mlflow(self) -> Path:
        return self.work / "mlflow"

    @property
    def prefect(self) -> Path:
        return self.work / "prefect"

    @property
    def lock_file(self) -> Path:
        return self.work / "run.lock"

    def defaults(self) -> dict[str, str]:
        """Settings of the tools, as environment variables, for what the environment leaves open."""
        return {
            **_QUIET_TOOLS,
            "MLFLOW_TRACKING_URI": f"sqlite:///{self.mlflow.resolve() / 'mlflow.db'}",
            "PREFECT_HOME": str(self.prefect.resolve()),
        }


def set_defaults(workspace: Workspace) -> None:
    """Give this process, and those it starts, every default that the environment leaves open.

    Makes the project's own Prefect home: Prefect would make the last folder of its path, but not those above it.
    """
    workspace.prefect.mkdir(parents=True, exist_ok=True)
    for name, value in workspace.defaults().items():
        os.environ.setdefault(name, value)
    reach_this_machine_directly()


def reach_this_machine_directly() -> None:
    """A proxy of the environment knows no server of ours: to it, 127.0.0.1 is itself.

    Both names are set, and alike: of libraries that read them, some prefer one and some the other.
    """
    exempt = os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or ""
    if exempt.strip() != "*":
        hosts = [host.strip() for host in exempt.split(",") if host.strip()]
        exempt = ",".join(dict.fromkeys([*hosts, *_LOOPBACK]))
    os.environ.update(no_proxy=exempt, NO_PROXY=exempt)


def tracking_uri(workspace: Workspace, environment: Mapping[str, str] = os.environ) -> str:
    """MLflow's address: the environment's, or the project's own database."""
    return environment.get("MLFLOW_TRACKING_URI") or workspace.defaults()["MLFLOW_TRACKING_URI"]
