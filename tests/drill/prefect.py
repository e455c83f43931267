"""A Prefect server and a worker over a project, as infra/README.md starts them; either may be killed.

The worker is Prefect's own, without `flows/worker.py` above it: after a kill, nothing is left that ends the rest.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final
from uuid import uuid4

import httpx
import psutil

from clozeline.system.workspace import Workspace
from tests.drill.project import environment
from tests.infra.stack.compose_file import read_env_file
from tests.make.processes import answers, wait_for
from tests.make.servers import held_ports

CHECKOUT = Path(__file__).parents[2]
_LONGEST_SECONDS = 1800.0
_NONE: Final[Mapping[str, str]] = MappingProxyType({})


class Prefect:
    """Server, worker and the deployments of infra/prefect.yaml over the project in `root`."""

    def __init__(self, root: Path, home: Path, port: int, variables: Mapping[str, str] = _NONE) -> None:
        self.root = root
        self._home = home
        self._port = port
        self.url = f"http://127.0.0.1:{port}/api"
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._environment = {
            **environment(root, **variables),
            **read_env_file(CHECKOUT / "infra/settings.env"),
            "PREFECT_API_URL": self.url,
            "PREFECT_HOME": str(home),
            "PREFECT_SERVER_API_PORT": str(port),
            "CLOZELINE_HOME": str(root),
        }

    def start_server(self) -> None:
        self._start("server", [sys.executable, str(CHECKOUT / "infra/prefect/start_server.py")])
        assert wait_for(lambda: answers(f"{self.url}/health"), _LONGEST_SECONDS), self.logs()
        # Prefect's own worker, and commands in copies of the project, do not look for it.
        self._environment["PREFECT_API_AUTH_STRING"] = self.password

    @property
    def password(self) -> str:
        """What the server made at its first start, as `USER:PASSWORD`."""
        return Workspace(self.root).prefect_password(self._port).read_text().strip()

    def start_worker(self, inside: Sequence[str] = ()) -> None:
        """Start the worker; `inside`: a command that runs the command after it, as `env` does."""
        self._start("worker", [*inside, "prefect", "worker", "start", "--pool", "clozeline", "--type", "process"])

    def deploy(self) -> None:
        command = [sys.executable, "-m", "clozeline.flows.deploy"]
        subprocess.run(command, cwd=self.root, env=self._environment, check=True, stdout=subprocess.DEVNULL)

    def kill(self, name: str) -> None:
        process = self._processes.pop(name)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def kill_worker_and_flow(self) -> None:
        """Kill the worker and the process of its flow at once; stages have to end by themselves."""
        for flow in psutil.Process(self._processes["worker"].pid).children():
            flow.kill()
        self.kill("worker")

    def begin(self, deployment: str = "nightly", **parameters: object) -> str:
        """Start a run of the deployment; return its id."""
        found = self.ask("GET", f"/deployments/name/{deployment}/{deployment}")
        body = {"parameters": parameters, "idempotency_key": uuid4().hex}
        return str(self.ask("POST", f"/deployments/{found['id']}/create_flow_run", json=body)["id"])

    def state(self, run: str) -> str:
        return str(self.ask("GET", f"/flow_runs/{run}")["state"]["type"])

    def runs(self, *deployments: str) -> list[dict[str, Any]]:
        """Return the runs of the deployments, by default of `nightly`, without those that a schedule planned, oldest
        first.
        """
        body = {"deployments": {"name": {"any_": deployments or ["nightly"]}}, "sort": "EXPECTED_START_TIME_ASC"}
        return [run for run in self.ask("POST", "/flow_runs/filter", json=body) if not run["auto_scheduled"]]

    def ask(self, method: str, path: str, **given: Any) -> Any:
        """Return the answer; ask again while the server is busy."""
        user, _, password = self.password.partition(":")
        for is_last_try in (*[False] * 20, True):
            try:
                answer = httpx.request(method, f"{self.url}{path}", auth=(user, password), timeout=60, **given)
                return answer.raise_for_status().json()
            except httpx.HTTPError:
                if is_last_try:
                    raise
            time.sleep(3)
        raise AssertionError

    def logs(self) -> str:
        """Return the ends of all logs."""
        files = [*self._home.glob("*.log"), *(self.root / "work/logs").rglob("*.log")]
        return "\n".join(f"{file}:\n{file.read_text(errors='replace')[-3000:]}" for file in files)

    def stop(self) -> None:
        for name in list(self._processes):
            self.kill(name)

    def _start(self, name: str, command: list[str]) -> None:
        self._home.mkdir(exist_ok=True)
        with (self._home / f"{name}.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(
                command, cwd=self._home, env=self._environment, stdout=log, stderr=log, start_new_session=True
            )


@contextmanager
def prefect_over(root: Path, home: Path, variables: Mapping[str, str] = _NONE) -> Iterator[Prefect]:
    """Yield a server and a worker over the project in `root`, with what infra/prefect.yaml deploys.

    `variables`: environment of all of them, such as the address of MLflow.
    """
    for name in ("flows", "infra"):
        shutil.copytree(CHECKOUT / name, root / name)
    with held_ports() as free_port:
        prefect = Prefect(root, home, free_port(), variables)
        try:
            prefect.start_server()
            prefect.deploy()
            prefect.start_worker()
            yield prefect
        finally:
            prefect.stop()
