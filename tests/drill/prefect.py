"""A Prefect server and a worker over a project, as infra/README.md starts them; either may be killed."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil

from tests.drill.project import environment
from tests.ports import held_ports
from tests.processes import wait_for

CHECKOUT = Path(__file__).parents[2]
_LONGEST_SECONDS = 1800.0


class Prefect:
    """Server, worker and the deployment `nightly` over the project in `root`."""

    def __init__(self, root: Path, home: Path, port: int) -> None:
        self.root = root
        self._home = home
        self._url = f"http://127.0.0.1:{port}/api"
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        settings = (CHECKOUT / "infra/settings.env").read_text().splitlines()
        self._environment = {
            **environment(root),
            **dict(line.partition("=")[::2] for line in settings if line and not line.startswith("#")),
            "PREFECT_API_URL": self._url,
            "PREFECT_HOME": str(home),
            "PREFECT_SERVER_API_PORT": str(port),
            "CLOZELINE_HOME": str(root),
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        }

    def start_server(self) -> None:
        self._start("server", [sys.executable, str(CHECKOUT / "infra/prefect/start_server.py")])
        assert wait_for(self._answers, _LONGEST_SECONDS), self.logs()

    def start_worker(self) -> None:
        self._start("worker", ["prefect", "worker", "start", "--pool", "clozeline", "--type", "process"])

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

    def begin(self) -> str:
        """Start a run of `nightly`; return its id."""
        found = httpx.get(f"{self._url}/deployments/name/nightly/nightly", timeout=60).raise_for_status().json()
        made = httpx.post(f"{self._url}/deployments/{found['id']}/create_flow_run", json={}, timeout=60)
        return str(made.raise_for_status().json()["id"])

    def state(self, run: str) -> str:
        answer = httpx.get(f"{self._url}/flow_runs/{run}", timeout=60).raise_for_status().json()
        return str(answer["state"]["type"])

    def runs(self) -> list[dict[str, Any]]:
        """Return the runs of `nightly` except those that its schedule planned, oldest first."""
        body = {"deployments": {"name": {"any_": ["nightly"]}}, "sort": "EXPECTED_START_TIME_ASC"}
        answer = httpx.post(f"{self._url}/flow_runs/filter", json=body, timeout=60).raise_for_status()
        return [run for run in answer.json() if not run["auto_scheduled"]]

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

    def _answers(self) -> bool:
        try:
            return httpx.get(f"{self._url}/health", timeout=5).status_code == 200
        except httpx.TransportError:
            return False


@contextmanager
def prefect_over(root: Path, home: Path) -> Iterator[Prefect]:
    """Yield a server and a worker over the project in `root`, to which `nightly` is deployed."""
    for name in ("flows", "infra"):
        shutil.copytree(CHECKOUT / name, root / name)
    with held_ports() as free_port:
        prefect = Prefect(root, home, free_port())
        try:
            prefect.start_server()
            prefect.deploy()
            prefect.start_worker()
            yield prefect
        finally:
            prefect.stop()
