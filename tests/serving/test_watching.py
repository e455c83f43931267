"""When an alias moves, the new version takes over without a failed request, or is refused and the old one stays.

Three servers of a fleet are behind a load balancer that follows their readiness: no request fails, and no old version
answers after a new one, while versions change, load slowly or not at all, and a server is killed.
"""

import gc
import itertools
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Self

import httpx
import pytest

from clozeline.registry import models
from clozeline.registry.models import NOTICE_VARIABLE, Announcement, FetchedPackage, Registered
from clozeline.registry.sources import ModelSource
from clozeline.serving import loading, watching
from clozeline.serving.loading import open_source
from clozeline.serving.models import Capacity, Catalogue, Service
from clozeline.serving.server import create_app
from clozeline.serving.watching import Watcher
from clozeline.system.errors import ArtifactError, TransientError
from tests.make.packages import write_classifier, write_embedder, write_encoder
from tests.serving.conftest import Server, wait_until

SOURCE = ModelSource("encoder", "models:/clozeline-encoder@champion")


class Aliases:
    """Registry whose only alias is moved by hand; version N is in the folder N."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.live = "1"
        self.answers = True
        self.num_fetched = 0

    def live_version(self, uri: str) -> Registered:
        if not self.answers:
            raise TransientError("the registry does not answer", given=uri, expected="an answer", do="wait")
        return Registered("clozeline-encoder", self.live, "", "", was_rolled_back=False)

    def fetch(self, uri: str) -> FetchedPackage:
        self.num_fetched += 1
        version = Registered("clozeline-encoder", self.live, "", "", was_rolled_back=False)
        return FetchedPackage(self.folder / self.live, version)


@pytest.fixture
def aliases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Aliases:
    """Registry of versions 1 to 3; version 3 is damaged."""
    for version in "123":
        write_encoder(tmp_path / version)
    graph = tmp_path / "3" / "model.int8.onnx"
    graph.write_bytes(graph.read_bytes()[:-1] + b"?")
    aliases = Aliases(tmp_path)
    monkeypatch.setattr(models, "fetch", aliases.fetch)
    return aliases


@pytest.fixture
def service(aliases: Aliases) -> Iterator[Service]:
    service = Service(Capacity(num_workers=1, cache_bytes=100_000))
    service.open(Catalogue([open_source(SOURCE, "int8")]))
    yield service
    service.close()


@pytest.fixture
def watcher(service: Service, aliases: Aliases) -> Watcher:
    return Watcher(service, [SOURCE], "int8", 0.01, aliases.live_version)


def version_of(client: httpx.Client) -> str:
    answer = client.post("/embed", json={"inputs": "the list"})
    assert answer.status_code == 200
    return answer.headers["x-model-version"]


def test_moving_an_alias_swaps_the_model_without_failing_requests(
    serving: Server, service: Service, watcher: Watcher, aliases: Aliases
) -> None:
    seen: list[str] = []
    ends = threading.Event()

    def ask_on_and_on(client: httpx.Client) -> None:
        while not ends.is_set():
            seen.append(version_of(client))

    with serving(create_app(service)) as client:
        asking = threading.Thread(target=ask_on_and_on, args=(client,))
        asking.start()
        for version in "212":
            aliases.live = version
            watcher.look()
            assert version_of(client) == version
        ends.set()
        asking.join()
        counted = client.get("/metrics").text
    assert set(seen) <= {"1", "2"}
    assert 'clozeline_model_swaps_total{model="encoder"} 3.0' in counted
    assert 'version="2"} 1.0' in counted
    assert 'version="1"' not in counted


def test_requests_accepted_before_a_swap_are_answered_by_the_old_version(
    serving: Server,
    service: Service,
    watcher: Watcher,
    aliases: Aliases,
    monkeypatch: pytest.MonkeyPatch,
    held: threading.Event,
) -> None:
    """One request runs and another waits while the alias moves; the new version answers later requests."""
    with serving(create_app(service)) as client, ThreadPoolExecutor(2) as clients:
        running = clients.submit(version_of, client)
        wait_until(lambda: service.workers.num_running == 1)
        waiting = clients.submit(version_of, client)
        wait_until(lambda: service.scheduler.waiting_tokens > 0)
        # The warm-up of the new version would wait for `held` too.
        monkeypatch.setattr(loading, "_warm_up", lambda model: None)
        aliases.live = "2"
        watcher.look()
        assert service.catalogue.named("encoder").identity.version == "2"
        assert not running.done()
        held.set()
        assert [running.result(), waiting.result(), version_of(client)] == ["1", "1", "2"]


def test_a_damaged_version_is_refused_and_the_old_one_stays(
    serving: Server, service: Service, watcher: Watcher, aliases: Aliases, caplog: pytest.LogCaptureFixture
) -> None:
    with serving(create_app(service)) as client:
        aliases.live = "3"
        for _ in range(8):
            watcher.look()
        assert version_of(client) == "1"
        assert client.get("/health/ready").status_code == 200
        assert 'clozeline_refused_versions_total{model="encoder"} 1.0' in client.get("/metrics").text
        assert "model.int8.onnx is not the file that was exported" in caplog.text
        assert caplog.text.count("version 3 cannot be served") == 1  # logged once; attempts become rarer
        assert aliases.num_fetched == 4  # once for version 1, three times for version 3 in eight polls
        aliases.live = "2"
        for _ in range(8):
            watcher.look()
        assert version_of(client) == "2"


def test_a_version_of_another_task_is_refused_and_the_old_one_stays(
    service: Service, watcher: Watcher, aliases: Aliases, caplog: pytest.LogCaptureFixture
) -> None:
    write_classifier(aliases.folder / "4")
    aliases.live = "4"
    watcher.look()
    assert service.catalogue.named("encoder").identity.version == "1"
    assert "version 4 of encoder has another task" in caplog.text
    assert "text-classification" in caplog.text


def test_a_version_too_large_for_memory_is_refused_until_there_is_room(
    service: Service,
    watcher: Watcher,
    aliases: Aliases,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    needed_bytes = loading.room_bytes((aliases.folder / "2" / "model.int8.onnx").stat().st_size)
    monkeypatch.setattr(loading, "free_memory_bytes", lambda: needed_bytes - 1)
    aliases.live = "2"
    watcher.look()
    assert service.catalogue.named("encoder").identity.version == "1"
    assert "there is not enough memory to load" in caplog.text
    monkeypatch.setattr(loading, "free_memory_bytes", lambda: needed_bytes)
    for _ in range(3):
        watcher.look()
    assert service.catalogue.named("encoder").identity.version == "2"


def test_a_replaced_model_is_released(serving: Server, service: Service, watcher: Watcher, aliases: Aliases) -> None:
    before = weakref.ref(service.catalogue.named("encoder").model)
    with serving(create_app(service)) as client:
        version_of(client)
        aliases.live = "2"
        watcher.look()
        version_of(client)
    gc.collect()
    assert before() is None


def test_memory_of_a_replaced_model_is_returned_at_the_next_poll(
    watcher: Watcher, aliases: Aliases, monkeypatch: pytest.MonkeyPatch
) -> None:
    given_back: list[str] = []
    monkeypatch.setattr(watching, "give_back_freed", lambda: given_back.append(aliases.live))
    watcher.look()
    assert given_back == []
    aliases.live = "2"
    watcher.look()
    assert given_back == []  # a request may still use the old model
    watcher.look()
    watcher.look()
    assert given_back == ["2"]


def test_an_unresponsive_registry_does_not_change_the_served_models(
    service: Service, watcher: Watcher, aliases: Aliases, caplog: pytest.LogCaptureFixture
) -> None:
    aliases.answers = False
    watcher.look()
    watcher.look()
    assert service.catalogue.named("encoder").identity.version == "1"
    assert caplog.text.count("does not answer") == 1
    aliases.answers, aliases.live = True, "2"
    for _ in range(3):
        watcher.look()
    assert service.catalogue.named("encoder").identity.version == "2"


def test_the_watcher_polls_only_aliases_and_in_the_background(
    service: Service, watcher: Watcher, aliases: Aliases
) -> None:
    aliases.live = "2"
    watcher.start()
    deadline = time.monotonic() + 120
    while service.catalogue.named("encoder").identity.version != "2":
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.01)
    watcher.stop()
    assert not ModelSource("encoder", "models:/clozeline-encoder/1").is_alias
    assert not ModelSource("encoder", "dist/encoder").is_alias


def test_cached_answers_of_an_older_version_are_not_used(
    serving: Server, service: Service, watcher: Watcher, aliases: Aliases
) -> None:
    with serving(create_app(service)) as client:
        first, again = (client.post("/embed", json={"inputs": "the list"}) for _ in range(2))
        assert again.json() == first.json()
        assert ("x-cache" in first.headers, again.headers["x-cache"]) == (False, "hit")
        assert again.headers["x-model-version"] == "1"
        aliases.live = "2"
        watcher.look()
        assert version_of(client) == "2"


IN_FLEET = ModelSource("encoder", "models:/clozeline-encoder@champion", is_in_fleet=True)
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


class Replica:
    """A server of the fleet, whose watcher looks several times a second."""

    def __init__(self, champion: Champion, serving: Server) -> None:
        self.service = Service(Capacity(num_workers=1))
        self.watcher = Watcher(self.service, [IN_FLEET], "int8", 0.2, champion.live_version)
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

    def __init__(self, servers: list[Replica]) -> None:
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
    def _is_ready(server: Replica) -> bool:
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
def servers(champion: Champion, serving: Server) -> Iterator[list[Replica]]:
    servers = [Replica(champion, serving) for _ in range(3)]
    yield servers
    for server in servers:
        if server.is_listed:
            server.end()


def test_a_client_of_a_load_balancer_sees_each_version_in_its_turn_and_no_error(
    champion: Champion, servers: list[Replica]
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
