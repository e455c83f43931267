"""Three servers behind a load balancer that follows their readiness: no request fails, and no old version answers after
a new one, while versions change, load slowly or not at all, and a server is killed.
"""

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Self

import httpx
import pytest
from starlette.types import ASGIApp

from clozeline.registry import models
from clozeline.registry.models import NOTICE_VARIABLE, Announcement, FetchedPackage, Registered
from clozeline.registry.sources import ModelSource
from clozeline.serving.models import Capacity, Service
from clozeline.serving.server import create_app
from clozeline.serving.watching import Watcher
from clozeline.system.errors import ArtifactError
from tests.make.packages import write_embedder
from tests.serving.conftest import wait_until

SOURCE = ModelSource("encoder", "models:/clozeline-encoder@champion", is_in_fleet=True)
NOTICE_SECONDS = 4.0


class Champion:
    """Registry of one model; each watcher's thread may be slow or fail to fetch a version."""

    def __init__(self, folder: Path) -> None:
        self.live = Registered("clozeline-encoder", "1", "", "", False, announcement=Announcement.now(is_first=True))
        self.folder = folder
        self.hinder: Callable[[str], None] = lambda version: None

    def promote(self, version: str) -> None:
        self.live = Registered("clozeline-encoder", version, "", "", False, announcement=Announcement.now())

    def live_version(self, uri: str) -> Registered:
        return self.live

    def fetch(self, uri: str) -> FetchedPackage:
        live = self.live
        self.hinder(live.version)
        return FetchedPackage(self.folder, live)


class Server:
    """A server of the fleet, whose watcher looks several times a second."""

    def __init__(self, champion: Champion, serving: Callable[[ASGIApp], AbstractContextManager[httpx.Client]]) -> None:
        self.service = Service(Capacity(num_workers=1))
        self.watcher = Watcher(self.service, [SOURCE], "int8", 0.2, champion.live_version)
        self.service.open(self.watcher.load())
        self._stack = ExitStack()
        self.client = self._stack.enter_context(serving(create_app(self.service)))
        self.checks = self._stack.enter_context(httpx.Client(base_url=self.client.base_url, trust_env=False))
        self.watcher.start()
        self.is_listed = True
        self.in_use = threading.Lock()

    @property
    def thread(self) -> threading.Thread:
        return self.watcher._thread

    def end(self) -> None:
        with self.in_use:
            self.is_listed = False
        self.watcher.stop()
        self._stack.close()
        self.service.close()


class Balancer(threading.Thread):
    """A client that asks on and on through a load balancer, which checks the readiness of each server."""

    def __init__(self, servers: list[Server]) -> None:
        super().__init__(daemon=True)
        self.servers = servers
        self.versions: list[str] = []
        self.failures: list[str] = []
        self.ends = threading.Event()
        self.ready = list(servers)
        self._checks = threading.Thread(target=self._check, daemon=True)

    def _check(self) -> None:
        while not self.ends.wait(0.1):
            self.ready = [server for server in self.servers if self._is_ready(server)]

    @staticmethod
    def _is_ready(server: Server) -> bool:
        with server.in_use:
            return server.is_listed and server.checks.get("/health/ready").status_code == 200

    def run(self) -> None:
        self._checks.start()
        for turn in itertools.count():
            if self.ends.wait(0.01):
                self._checks.join()
                return
            ready = [server for server in self.ready if server.is_listed]
            if not ready:
                self.failures.append("no server is ready")
                continue
            server = ready[turn % len(ready)]
            with server.in_use:
                if not server.is_listed:
                    continue
                answer = server.client.post("/embed", json={"inputs": "the list"})
            if answer.status_code == 200:
                self.versions.append(answer.headers["x-model-version"])
            else:
                self.failures.append(answer.text)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self.ends.set()
        self.join()

    @property
    def changes(self) -> list[str]:
        """Versions of the answers, without repetitions."""
        return [version for version, _ in itertools.groupby(self.versions)]


@pytest.fixture
def champion(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Champion:
    monkeypatch.setenv(NOTICE_VARIABLE, str(NOTICE_SECONDS))
    write_embedder(tmp_path / "package")
    champion = Champion(tmp_path / "package")
    monkeypatch.setattr(models, "fetch", champion.fetch)
    return champion


@pytest.fixture
def servers(
    champion: Champion, serving: Callable[[ASGIApp], AbstractContextManager[httpx.Client]]
) -> Iterator[list[Server]]:
    servers = [Server(champion, serving) for _ in range(3)]
    yield servers
    for server in servers:
        if server.is_listed:
            server.end()


def test_a_client_of_a_load_balancer_sees_each_version_in_its_turn_and_no_error(
    champion: Champion, servers: list[Server]
) -> None:
    fails, slow, killed = servers

    def hinder(version: str) -> None:
        me = threading.current_thread()
        if me is fails.thread and version == "3":
            raise ArtifactError("the graph is damaged", given=version, expected="a graph", do="restore it")
        if me is slow.thread and version == "2":
            time.sleep(NOTICE_SECONDS + 1)

    champion.hinder = hinder
    with Balancer(servers) as balancer:
        champion.promote("2")
        wait_until(lambda: balancer.versions[-1:] == ["2"], 30)
        assert slow.client.get("/health/ready").status_code == 503
        assert slow.client.post("/embed", json={"inputs": "the list"}).headers["retry-after"] == "1"
        wait_until(lambda: slow in balancer.ready, 30)
        champion.promote("3")
        wait_until(lambda: balancer.versions[-1:] == ["3"], 30)
        assert fails not in balancer.ready
        champion.hinder = lambda version: None
        killed.end()  # the balancer sends its requests to another server
        champion.promote("2")
        wait_until(lambda: balancer.versions[-1:] == ["2"] and len(balancer.ready) == 2, 30)
    assert balancer.failures == []
    assert balancer.changes == ["1", "2", "3", "2"]
