"""Three replicas behind Debian's haproxy change versions: no request fails, no old version answers after a new one.

Their registry is MLflow's server over PostgreSQL, as a team has it.
"""

import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from clozeline.records.package import package_sha256
from clozeline.registry.models import NOTICE_VARIABLE
from clozeline.registry.versions import Registry
from clozeline.tracking.mlflow import experiment_id, prepare
from tests.make.packages import write_embedder
from tests.make.processes import answers, wait_for
from tests.make.servers import server_over_postgres

pytestmark = pytest.mark.deployment  # half a minute: four servers

CONFIG = Path(__file__).parents[2] / "infra" / "haproxy" / "haproxy.cfg"
NAME = "clozeline-encoder"
# Time from a promotion to the change; loading takes seconds on a busy machine.
NOTICE_SECONDS = 10.0


class Replica:
    """Serves the champion of the encoder of the registry at `address`, on `port`."""

    def __init__(self, folder: Path, address: str, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"
        folder.mkdir(exist_ok=True)
        self._log = folder / f"{port}.log"
        command = ["serve", "models:/clozeline-encoder@champion", "--fleet", "--port", str(port)]
        command = [sys.executable, "-m", "clozeline", *command, "--watch", "0.5", "--threads", "1"]
        variables = {"MLFLOW_TRACKING_URI": address, NOTICE_VARIABLE: str(NOTICE_SECONDS)}
        with self._log.open("wb") as log:
            given = {"cwd": folder, "env": os.environ | variables}
            self.process = subprocess.Popen(command, stdout=log, stderr=log, **given)

    def log(self) -> str:
        return self._log.read_text(encoding="utf-8")

    def is_ready(self) -> bool:
        return answers(f"{self.url}/health/ready")

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


class Fleet:
    """Three replicas, each in a folder of its own as on a machine of its own, and haproxy in front of them."""

    def __init__(self, folder: Path, address: str, free_port: Callable[[], int], stack: ExitStack) -> None:
        self.folder = folder
        self.client = prepare(address)
        self.experiment = experiment_id(self.client, address)
        self.registry = Registry.open(address)
        self.promote_another()
        port, *ports = [free_port() for _ in range(4)]
        config = CONFIG.read_text(encoding="utf-8").replace(":8080", f":{port}")
        for number, replica_port in enumerate(ports, 1):
            config = config.replace(f":800{number}", f":{replica_port}")
        (folder / "haproxy.cfg").write_text(config, encoding="utf-8")
        self.replicas = [Replica(folder / str(port), address, port) for port in ports]
        for replica in self.replicas:
            stack.callback(replica.kill)
        self.wait_until(lambda: all(replica.is_ready() for replica in self.replicas))
        # A replica that haproxy found down would get no request until its next check.
        proxy = subprocess.Popen(["haproxy", "-db", "-f", str(folder / "haproxy.cfg")], stderr=subprocess.DEVNULL)
        stack.callback(proxy.wait)
        stack.callback(proxy.kill)
        self.url = f"http://127.0.0.1:{port}"
        self.wait_until(lambda: answers(f"{self.url}/health/ready"))

    def promote_another(self) -> None:
        """Register a version and make it the champion."""
        run = self.client.create_run(self.experiment).info
        package = self.folder / run.run_id / "artifacts/package"
        write_embedder(package)
        self.client.log_artifacts(run.run_id, str(self.folder / run.run_id), "model")
        made = {"source": f"{run.artifact_uri}/model", "run_id": run.run_id, "package_sha256": package_sha256(package)}
        self.registry.promote(self.registry.register(NAME, **made, description=""))

    def wait_until(self, condition: Callable[[], bool]) -> None:
        assert wait_for(condition, 240), [one.log() for one in self.replicas]


class Client(threading.Thread):
    """Asks on and on, and keeps the versions of the answers in order."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self.url = url
        self.versions: list[str] = []
        self.slowest_seconds = 0.0
        self.failures: list[str] = []
        self._ends = threading.Event()

    def run(self) -> None:
        with httpx.Client(base_url=self.url, trust_env=False, timeout=60) as client:
            while not self._ends.wait(0.01):
                began = time.monotonic()
                try:
                    answer = client.post("/embed", json={"inputs": "the list"}).raise_for_status()
                    self.versions.append(answer.headers["x-model-version"])
                except httpx.HTTPError as error:
                    self.failures.append(repr(error))
                self.slowest_seconds = max(self.slowest_seconds, time.monotonic() - began)

    def __enter__(self) -> "Client":
        self.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._ends.set()
        self.join()

    @property
    def changes(self) -> list[str]:
        """Versions of the answers, without repetitions."""
        return [version for version, _ in itertools.groupby(self.versions)]


def test_a_promotion_a_kill_an_outage_of_the_registry_and_a_rollback_while_a_client_asks(
    tmp_path: Path, free_port: Callable[[], int]
) -> None:
    with server_over_postgres(tmp_path, free_port) as server, ExitStack() as stack:
        fleet = Fleet(tmp_path, server.url, free_port, stack)
        client, late = stack.enter_context(Client(fleet.url)), fleet.replicas[1]
        fleet.promote_another()
        fleet.wait_until(lambda: all("version 2 is loaded" in one.log() for one in fleet.replicas))
        server.stop()
        fleet.replicas[2].process.send_signal(signal.SIGKILL)
        fleet.wait_until(lambda: "the version of its alias is unknown" in late.log())
        fleet.wait_until(lambda: client.versions[-1:] == ["2"])
        server.start()
        fleet.wait_until(late.is_ready)
        fleet.promote_another()
        fleet.wait_until(lambda: client.versions[-1:] == ["3"])
        fleet.registry.roll_back(NAME)
        fleet.wait_until(lambda: client.versions[-1:] == ["2"])
        time.sleep(1)
    assert client.failures == []
    assert client.changes == ["1", "2", "3", "2"]
    assert client.slowest_seconds < 20
    assert "Retrying" not in late.log(), "it says once that the registry is away"
