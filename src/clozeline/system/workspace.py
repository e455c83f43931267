"""Files of a project that no cache holds (runs, logs), its lock, and default settings for the tools that it starts.

The lock allows one run at a time. It is a kernel file lock (flock), which ends with its holder: DVC's own locks cannot
tell a holder in another container from a dead one; the kernel can.
"""

import fcntl
import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from clozeline.system.errors import TransientError

_LOG = logging.getLogger(__name__)

# No tool sends telemetry unless the user enables it, and a first start may take long on a slow processor.
_QUIET_TOOLS = {
    "DO_NOT_TRACK": "true",  # MLflow reads the word, other tools any value
    "DVC_NO_ANALYTICS": "1",
    "GIT_PYTHON_REFRESH": "quiet",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "3",  # 12 s; by default 5 min, but the outbox and the flows retry themselves
    "MLFLOW_LOGGING_LEVEL": "WARNING",
    "MLFLOW_MODEL_CATALOG_URI": "",
    "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",  # job workers for traces, which this project does not make
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "ORT_DISABLE_TELEMETRY": "1",
    "PREFECT_FLOWS_HEARTBEAT_FREQUENCY": "30",  # seconds, for which infra/prefect.yaml waits
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "120",
    "RAY_USAGE_STATS_ENABLED": "0",
}
_LOOPBACK = ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True)
class Workspace:
    """Folder of a project: the one with dvc.yaml and params.yaml."""

    root: Path

    @property
    def is_in_git(self) -> bool:
        return any((folder / ".git").exists() for folder in (self.root, *self.root.parents))

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

    def close_to_others(self) -> None:
        """Make `work` readable for its owner alone: it holds databases, logs and passwords.

        Raises:
            PermissionError: it is open to others and belongs to another user.
        """
        self.work.mkdir(mode=0o700, parents=True, exist_ok=True)
        if self.work.stat().st_mode & 0o077:
            self.work.chmod(0o700)

    def prefect_password(self, port: int) -> Path:
        """File with the password of the project's own Prefect server on that port, as Prefect's `USER:PASSWORD`."""
        return self.work / f"prefect-{port}.password"

    @property
    def experiments(self) -> Path:
        """Trainings of ablations and sweeps, with the text that they share."""
        return self.work / "experiments"

    @property
    def outbox(self) -> Path:
        """Runs that MLflow does not have completely yet."""
        return self.work / "outbox"

    @property
    def lock_file(self) -> Path:
        return self.work / "run.lock"

    def defaults(self) -> dict[str, str]:
        """Return the settings of the tools as environment variables, to be used where the environment sets none."""
        return {
            **_QUIET_TOOLS,
            "MLFLOW_TRACKING_URI": f"sqlite:///{self.mlflow.resolve() / 'mlflow.db'}",
            "PREFECT_HOME": str(self.prefect.resolve()),
        }


def quiet_tools() -> None:
    """Set the defaults that hold in every folder, where the environment sets none. Call it before importing MLflow."""
    for name, value in _QUIET_TOOLS.items():
        os.environ.setdefault(name, value)


def set_defaults(workspace: Workspace) -> None:
    """Set every default that the environment leaves open, for this process and its children.

    Creates the project's own Prefect home with its parents: Prefect itself would create only the last folder.
    """
    with suppress(PermissionError):  # the folder of another user, who opened it
        workspace.close_to_others()
    workspace.prefect.mkdir(parents=True, exist_ok=True)
    for name, value in workspace.defaults().items():
        os.environ.setdefault(name, value)
    reach_this_machine_directly()
    use_own_password(workspace)


def use_own_password(workspace: Workspace) -> None:
    """Let this process and its children sign in to the project's own Prefect server, if PREFECT_API_URL names it.

    No other address gets the password, and PREFECT_API_AUTH_STRING wins. Call it before importing Prefect, which reads
    its settings at import.
    """
    address = urlsplit(os.environ.get("PREFECT_API_URL", ""))
    if address.scheme != "http" or address.hostname not in _LOOPBACK or os.environ.get("PREFECT_API_AUTH_STRING"):
        return
    with suppress(OSError, ValueError):  # no such server, or that of another user; no number as its port
        password = workspace.prefect_password(address.port or 80).read_text(encoding="utf-8").strip()
        reach_this_machine_directly()  # else the proxy would read the password
        os.environ["PREFECT_API_AUTH_STRING"] = password


def reach_this_machine_directly() -> None:
    """Exempt this machine from the environment's proxy, for which 127.0.0.1 is the proxy itself.

    Both names are set, to the same value, because some libraries prefer one and some the other.
    """
    exempt = os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or ""
    if exempt.strip() != "*":
        hosts = [host.strip() for host in exempt.split(",") if host.strip()]
        exempt = ",".join(dict.fromkeys([*hosts, *_LOOPBACK]))
    os.environ.update(no_proxy=exempt, NO_PROXY=exempt)


def tracking_uri(workspace: Workspace) -> str:
    """Return the address of MLflow: the environment's, or the project's own database."""
    return os.environ.get("MLFLOW_TRACKING_URI") or workspace.defaults()["MLFLOW_TRACKING_URI"]


@contextmanager
def run_lock(path: Path, *, wait_seconds: float = 15.0, flow_run: str | None = None) -> Iterator[int]:
    """Hold the lock; yield its file descriptor, which child processes may inherit to hold it too.

    `wait_seconds` is as long as a killed run may take to end. `flow_run`: id of the flow run that holds the lock.

    Raises:
        TransientError: another run still holds the lock after `wait_seconds`.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+", encoding="utf-8") as file:
        _acquire(file.fileno(), path, wait_seconds)
        file.truncate(0)
        holder = f"process {os.getpid()}" + (f", flow run {flow_run}," if flow_run else "")
        file.write(f"{holder} since {time.strftime('%Y-%m-%d %H:%M:%S%z')}\n")
        file.flush()
        yield file.fileno()


def _acquire(descriptor: int, path: Path, wait_seconds: float) -> None:
    deadline = time.monotonic() + wait_seconds
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError as error:
            if time.monotonic() >= deadline:
                holder = path.read_text(encoding="utf-8").strip() or "another process"
                raise TransientError(
                    f"another run is active in this folder: {path} is held by {holder}",
                    do="wait until it ends, or stop it (Ctrl-C in its terminal): two would write the same files",
                ) from error
            time.sleep(0.2)
