"""When an alias moves, the new version takes over without a failed request, or is refused and the old one stays; in a
fleet, no old version answers after a new one."""

import gc
import itertools
import threading
import time
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from clozeline.registry import models
from clozeline.registry.models import Announcement, FetchedPackage, Registered
from clozeline.registry.sources import ModelSource
from clozeline.serving import loading, watching
from clozeline.serving.loading import open_source
from clozeline.serving.models import Capacity, Catalogue, Service
from clozeline.serving.queue import SKEW_SECONDS
from clozeline.serving.watching import Watcher
from clozeline.system.errors import TransientError
from tests.make.apps import running
from tests.make.packages import write_classifier, write_encoder
from tests.serving.conftest import wait_until

SOURCE = ModelSource("encoder", "models:/clozeline-encoder@champion")


class Aliases:
    """Registry whose only alias is moved by hand; version N is in the folder N."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.live = "1"
        self.answers = True
        self.num_fetched = 0
        self.announcement: Announcement | None = None

    def live_version(self, uri: str) -> Registered:
        if not self.answers:
            raise TransientError("the registry does not answer", given=uri, expected="an answer", do="wait")
        return Registered("clozeline-encoder", self.live, "", "", False, announcement=self.announcement)

    def fetch(self, uri: str) -> FetchedPackage:
        self.num_fetched += 1
        return FetchedPackage(self.folder / self.live, self.live_version(uri))


@pytest.fixture
def aliases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Aliases:
    """Registry of versions 1 to 4; version 3 is damaged, and version 4 is of another task."""
    for version in "123":
        write_encoder(tmp_path / version)
    write_classifier(tmp_path / "4")
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
    return client.post("/embed", json={"inputs": "the list"}).raise_for_status().headers["x-model-version"]


def served_after(service: Service, watcher: Watcher, num_looks: int = 1) -> str:
    """Return the version that is served after so many polls."""
    for _ in range(num_looks):
        watcher.look()
    return service.catalogue.named("encoder").identity.version


def test_moving_an_alias_swaps_the_model_without_failing_requests(
    service: Service, watcher: Watcher, aliases: Aliases
) -> None:
    seen: list[str] = []
    ends = threading.Event()

    def ask_on_and_on(client: httpx.Client) -> None:
        while not ends.is_set():
            seen.append(version_of(client))

    with running(service) as client, ThreadPoolExecutor(1) as clients:
        asking = clients.submit(ask_on_and_on, client)
        for version in "212":
            aliases.live = version
            watcher.look()
            assert version_of(client) == version
        ends.set()
        asking.result()
        counted = client.get("/metrics").text
    assert set(seen) <= {"1", "2"}
    assert 'clozeline_model_swaps_total{model="encoder"} 3.0' in counted
    assert 'version="2"} 1.0' in counted
    assert 'version="1"' not in counted


def test_requests_accepted_before_a_swap_are_answered_by_the_old_version(
    service: Service,
    watcher: Watcher,
    aliases: Aliases,
    monkeypatch: pytest.MonkeyPatch,
    held: threading.Event,
) -> None:
    """One request runs and another waits while the alias moves; the new version answers later requests."""
    with running(service) as client, ThreadPoolExecutor(2) as clients:
        begun = clients.submit(version_of, client)
        wait_until(lambda: service.workers.num_running == 1)
        waiting = clients.submit(version_of, client)
        wait_until(lambda: service.scheduler.waiting_tokens > 0)
        # The warm-up of the new version would wait for `held` too.
        monkeypatch.setattr(loading, "_warm_up", lambda model: None)
        aliases.live = "2"
        assert served_after(service, watcher) == "2"
        assert not begun.done()
        held.set()
        assert [begun.result(), waiting.result(), version_of(client)] == ["1", "1", "2"]


def test_a_damaged_version_is_refused_and_the_old_one_stays(
    service: Service, watcher: Watcher, aliases: Aliases, caplog: pytest.LogCaptureFixture
) -> None:
    with running(service) as client:
        aliases.live = "3"
        assert served_after(service, watcher, 8) == version_of(client) == "1"
        assert client.get("/health/ready").status_code == 200
        assert 'clozeline_refused_versions_total{model="encoder"} 1.0' in client.get("/metrics").text
        assert caplog.text.count("version 3 cannot be served") == 1  # logged once; attempts become rarer
        assert aliases.num_fetched == 4  # once for version 1, three times for version 3 in eight polls
        aliases.live = "2"
        assert served_after(service, watcher, 8) == version_of(client) == "2"


def test_a_version_of_another_task_is_refused_and_the_old_one_stays(
    service: Service, watcher: Watcher, aliases: Aliases, caplog: pytest.LogCaptureFixture
) -> None:
    aliases.live = "4"
    watcher.start()
    wait_until(lambda: "version 4 of encoder has another task" in caplog.text)
    watcher.stop()
    assert service.catalogue.named("encoder").identity.version == "1"


def test_a_replaced_model_is_released_and_its_memory_returned_at_the_next_poll(
    service: Service, watcher: Watcher, aliases: Aliases, monkeypatch: pytest.MonkeyPatch
) -> None:
    given_back: list[str] = []
    monkeypatch.setattr(watching, "give_back_freed", lambda: given_back.append(aliases.live))
    before = weakref.ref(service.catalogue.named("encoder").model)
    with running(service) as client:
        version_of(client)
        aliases.live = "2"
        watcher.look()
        version_of(client)
    gc.collect()
    assert before() is None
    assert given_back == []  # a request may still use the old model
    watcher.look()
    watcher.look()
    assert given_back == ["2"]


def test_a_version_too_large_for_memory_is_refused_until_there_is_room(
    service: Service, watcher: Watcher, aliases: Aliases, monkeypatch: pytest.MonkeyPatch
) -> None:
    needed_bytes = loading.room_bytes((aliases.folder / "2" / "model.int8.onnx").stat().st_size)
    aliases.live = "2"
    for free_bytes, version in ((needed_bytes - 1, "1"), (needed_bytes, "2")):
        monkeypatch.setattr(loading, "free_memory_bytes", lambda free_bytes=free_bytes: free_bytes)
        assert served_after(service, watcher, 3) == version


def test_in_a_fleet_requests_wait_for_the_turn_of_a_version_and_no_old_one_answers_after_it(aliases: Aliases) -> None:
    service = Service(Capacity(num_workers=1))
    aliases.announcement = Announcement.now(is_first=True)
    watcher = Watcher(service, [replace(SOURCE, is_in_fleet=True)], "int8", 10, aliases.live_version)
    service.open(watcher.load())
    with running(service) as client:
        aliases.live, now = "2", time.time()
        aliases.announcement = Announcement(now, now + SKEW_SECONDS + 0.5)
        watcher.look()
        seen = []
        while time.time() < aliases.announcement.serve_from_seconds + 0.2:
            seen.append(version_of(client))
        assert time.time() >= aliases.announcement.serve_from_seconds + SKEW_SECONDS, "the last one waited"
    assert [version for version, _ in itertools.groupby(seen)] == ["1", "2"]
