"""Three replicas behind Debian's haproxy change versions: no request fails, no old version answers after a new one.

Their registry is a SQLite file, or as a team has it: MLflow's server over PostgreSQL.
"""

import itertools
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Self

import httpx
import pytest

from clozeline.orchestration.status import _models
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
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "clozeline", *command, "--watch", "0.5", "--threads", "1"],
                cwd=folder,
                env=os.environ | {"MLFLOW_TRACKING_URI": address},
                stdout=log,
                stderr=log,
            )

    def log(self) -> str:
        return self._log.read_text(encoding="utf-8")

    def is_ready(self) -> bool:
        return answers(f"{self.url}/health/ready")

    def wait_until_ready(self) -> None:
        wait_for(lambda: self.is_ready() or self.process.poll() is not None, 240)
        assert self.is_ready(), self.log()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.process.kill()
        self.process.wait()


class Fleets:
    """Three replicas, each in a folder of its own as on a machine of its own, and haproxy in front of them."""

    def __init__(self, folder: Path, address: str, free_port: Callable[[], int], stack: ExitStack) -> None:
        self.folder = folder
        self.address = address
        self.client = prepare(self.address)
        self.experiment = experiment_id(self.client, self.address)
        self.registry = Registry.open(self.address)
        self.promote(self.register())
        ports = [free_port() for _ in range(3)]
        self.replicas = [stack.enter_context(Replica(folder / str(port), self.address, port)) for port in ports]
        port = free_port()
        config = CONFIG.read_text(encoding="utf-8").replace(":8080", f":{port}")
        for number, replica_port in enumerate(ports, 1):
            config = config.replace(f":800{number}", f":{replica_port}")
        (folder / "haproxy.cfg").write_text(config, encoding="utf-8")
        self.url = f"http://127.0.0.1:{port}"
        for replica in self.replicas:
            replica.wait_until_ready()
        # A replica that haproxy found down would get no request until its next check.
        proxy = subprocess.Popen(["haproxy", "-db", "-f", str(folder / "haproxy.cfg")], stderr=subprocess.DEVNULL)
        stack.callback(proxy.wait)
        stack.callback(proxy.kill)
        self.wait_until(lambda: answers(f"{self.url}/health/ready"))

    def register(self) -> str:
        run = self.client.create_run(self.experiment).info
        folder = self.folder / run.run_id
        write_embedder(folder / "artifacts" / "package")
        self.client.log_artifacts(run.run_id, str(folder), "model")
        return self.registry.register(
            NAME,
            source=f"{run.artifact_uri}/model",
            run_id=run.run_id,
            package_sha256=package_sha256(folder / "artifacts" / "package"),
            description="",
        ).version

    def promote(self, version: str) -> None:
        self.registry.promote(self.registry.version(NAME, version))

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
                    answer = client.post("/embed", json={"inputs": "the list"})
                except httpx.HTTPError as error:
                    self.failures.append(repr(error))
                    continue
                self.slowest_seconds = max(self.slowest_seconds, time.monotonic() - began)
                if answer.status_code != 200:
                    self.failures.append(answer.text)
                else:
                    self.versions.append(answer.headers["x-model-version"])

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


@pytest.fixture(autouse=True)
def short_notice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(NOTICE_VARIABLE, str(NOTICE_SECONDS))


@pytest.fixture
def fleet(tmp_path: Path, free_port: Callable[[], int]) -> Iterator[Fleets]:
    with ExitStack() as stack:
        yield Fleets(tmp_path, f"sqlite:///{tmp_path / 'mlflow.db'}", free_port, stack)


def test_the_example_configuration_is_valid() -> None:
    subprocess.run(["haproxy", "-c", "-f", str(CONFIG)], check=True, capture_output=True)


def test_a_promotion_a_kill_and_a_rollback_while_a_client_asks(fleet: Fleets) -> None:
    with Client(fleet.url) as client:
        fleet.promote(fleet.register())
        fleet.wait_until(lambda: client.versions[-1:] == ["2"])
        fleet.promote(fleet.register())
        time.sleep(NOTICE_SECONDS / 2)
        fleet.replicas[1].process.send_signal(signal.SIGKILL)
        fleet.wait_until(lambda: client.versions[-1:] == ["3"])
        fleet.registry.roll_back(NAME)
        fleet.wait_until(lambda: client.versions[-1:] == ["2"])
        time.sleep(1)
    assert client.failures == []
    assert client.changes == ["1", "2", "3", "2"]
    assert client.slowest_seconds < 20


def test_no_request_is_lost_with_a_replica_that_is_killed_while_it_has_one(fleet: Fleets) -> None:
    body = b'{"inputs": "the list"}'
    head = f"POST /embed HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\ncontent-length: {len(body)}"
    with ExitStack() as stack:
        killed = fleet.replicas[1].process
        killed.send_signal(signal.SIGSTOP)
        address = ("127.0.0.1", int(fleet.url.rpartition(":")[2]))
        clients = [stack.enter_context(socket.create_connection(address, timeout=30)) for _ in fleet.replicas]
        for part in (f"{head}\r\n\r\n".encode(), body):  # most clients send them in two packets
            for client in clients:
                client.sendall(part)
            time.sleep(0.3)
        killed.send_signal(signal.SIGKILL)
        assert [client.recv(15) for client in clients] == [b"HTTP/1.1 200 OK"] * len(clients)


def test_a_replica_that_cannot_load_a_version_gets_no_requests_until_the_promotion_is_taken_back(fleet: Fleets) -> None:
    late = fleet.replicas[2]
    with Client(fleet.url) as client:
        late.process.send_signal(signal.SIGSTOP)
        fleet.promote(fleet.register())
        [status] = _models(fleet.address)
        assert "a fleet serves it from" in "\n".join(status.of_fleet)
        fleet.wait_until(lambda: sum("version 2 is loaded" in one.log() for one in fleet.replicas) == 2)
        run_id = fleet.registry.version(NAME, "2").run_id
        [package] = (fleet.folder / "artifacts").glob(f"**/{run_id}/**/package")
        (package / "model.onnx").write_bytes(b"damaged after two replicas had read it")
        late.process.send_signal(signal.SIGCONT)
        fleet.wait_until(lambda: client.versions[-1:] == ["2"])
        fleet.wait_until(lambda: "version 2 cannot be served" in late.log())
        assert not late.is_ready()
        fleet.registry.roll_back(NAME)
        fleet.wait_until(lambda: client.versions[-1:] == ["1"] and late.is_ready())
    assert client.failures == []
    assert client.changes == ["1", "2", "1"]


def test_over_a_server_a_fleet_changes_although_the_registry_was_away_and_a_replica_died(
    tmp_path: Path, free_port: Callable[[], int]
) -> None:
    with server_over_postgres(tmp_path, free_port) as server, ExitStack() as stack:
        fleet = Fleets(tmp_path, server.url, free_port, stack)
        client, late = stack.enter_context(Client(fleet.url)), fleet.replicas[1]
        fleet.promote(fleet.register())
        fleet.wait_until(lambda: all("version 2 is loaded" in one.log() for one in fleet.replicas))
        server.stop()
        fleet.replicas[2].process.send_signal(signal.SIGKILL)
        fleet.wait_until(lambda: "the version of its alias is unknown" in late.log())
        fleet.wait_until(lambda: client.versions[-1:] == ["2"])
        server.start()
        fleet.wait_until(late.is_ready)
        fleet.registry.roll_back(NAME)
        fleet.wait_until(lambda: client.versions[-1:] == ["1"])
        time.sleep(1)
    assert client.failures == []
    assert client.changes == ["1", "2", "1"]
    assert "Retrying" not in late.log(), "it says once that the registry is away"
