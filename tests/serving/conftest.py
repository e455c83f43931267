"""A `dist/` with two tiny packages, and servers of them on a free port of the loopback, in a thread or a process."""

import json
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from starlette.types import ASGIApp

from clozeline.inference.open_model import OpenModel, Rows
from clozeline.inference.tokenization import TokenizedText
from clozeline.registry.sources import parse_sources
from clozeline.serving.loading import open_source
from clozeline.serving.models import Capacity, Catalogue, Service
from clozeline.serving.server import create_app
from clozeline.serving.tracing import Tracing
from clozeline.serving.uvicorn_adapter import configured
from tests.make import packages

# Names of packages of the other tasks, in the order in which they are served.
HEADS = {
    "topics": packages.write_topics,
    "ranker": packages.write_ranker,
    "names": packages.write_tagger,
    "reader": packages.write_answerer,
    "writer": packages.write_completer,
}
Hosted = Callable[..., AbstractContextManager[tuple[httpx.Client, Service]]]
HEAVY = ["torch", "transformers", "optimum", "prefect", "dvc", "mlflow", "onnx", "pandas", "datasets", "sklearn"]
SPY = f"""
import atexit, json, sys
from clozeline.cli import main
atexit.register(lambda: print("LOADED", json.dumps(sorted(set({HEAVY}) & set(sys.modules)))))
sys.argv[0] = "clozeline"
main()
"""


class Serve:
    """Process of `clozeline serve` with these arguments, run in `folder`."""

    def __init__(self, folder: Path, *arguments: str, before: str = "") -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", before + SPY, "serve", *arguments],
            cwd=folder,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self.told = ""

    def url(self) -> str:
        """Return the server's URL, once the server has printed it."""
        assert self.process.stdout
        for line in self.process.stdout:
            self.told += line
            found = re.search(r"URL +(http://\S+)", self.told)
            if found and "curl" in self.told:
                return found[1]
        raise AssertionError(f"ended without a URL: {self.process.communicate()}")

    def end(self) -> tuple[int, str, str]:
        """Wait for the process to end; return its exit code and the rest of its stdout and stderr."""
        stdout, stderr = self.process.communicate(timeout=120)
        return self.process.returncode, stdout, stderr


@pytest.fixture(scope="session")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A `dist/` with the packages `encoder` and `library`."""
    folder = tmp_path_factory.mktemp("project") / "dist"
    packages.write_encoder(folder / "encoder")
    packages.write_classifier(folder / "library")
    return folder


@pytest.fixture(scope="session")
def heads(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with a package for each of the other tasks."""
    folder = tmp_path_factory.mktemp("heads")
    for name, write in HEADS.items():
        write(folder / name)
    return folder


@pytest.fixture(scope="session")
def catalogue(dist: Path, heads: Path) -> Catalogue:
    sources = parse_sources(
        [*(str(dist / name) for name in ("encoder", "library")), *(str(heads / name) for name in HEADS)]
    )
    return Catalogue([open_source(source, "int8") for source in sources])


@pytest.fixture(scope="session")
def client(catalogue: Catalogue) -> Iterator[httpx.Client]:
    """HTTP client of the whole application, over a socket."""
    service = Service(Capacity(num_workers=2))
    service.open(catalogue)
    with run_app(create_app(service)) as client:
        yield client


@pytest.fixture
def hosted(catalogue: Catalogue) -> Hosted:
    """Context manager for tests with a service of their own over all models: `with hosted() as (client, service)`."""

    @contextmanager
    def hosted(
        *, tracing: Tracing | None = None, num_workers: int = 1, **options: Any
    ) -> Iterator[tuple[httpx.Client, Service]]:
        of_app = {name: options.pop(name) for name in ("keys", "bounds", "hosts") if name in options}
        service = Service(Capacity(num_workers=num_workers, **options), tracing)
        service.open(catalogue)
        with run_app(create_app(service, **of_app)) as client:
            yield client, service

    return hosted


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Event that every run of a model waits for."""
    release = threading.Event()
    rows = OpenModel.rows

    def waiting(self: OpenModel, texts: Sequence[TokenizedText], output: str) -> list[Rows]:
        assert release.wait(timeout=120)
        return rows(self, texts, output)

    monkeypatch.setattr(OpenModel, "rows", waiting)
    yield release
    release.set()


@contextmanager
def run_app(app: ASGIApp) -> Iterator[httpx.Client]:
    """Yield a client of `app`, which uvicorn runs in a thread on a free port of the loopback."""
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(configured(app))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        with httpx.Client(base_url=url, trust_env=False, timeout=60) as client:
            yield client
    finally:
        server.should_exit = True
        thread.join()


def busy(client: httpx.Client, service: Service, clients: ThreadPoolExecutor) -> "Future[httpx.Response]":
    """Return the answer to come of a request of 3 tokens, once the only worker runs it; see `held`."""
    running = clients.submit(client.post, "/embed", json={"inputs": "a"})
    wait_until(lambda: service.workers.num_running == 1)
    return running


def connection(client: httpx.Client) -> socket.socket:
    """Return a new connection to the server of `client`; the caller's `with` block closes it."""
    return socket.create_connection((client.base_url.host, client.base_url.port or 0), timeout=60)


def posted(path: str, body: object) -> bytes:
    """Return the bytes of a POST request."""
    sent = json.dumps(body)
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    return f"{head}content-length: {len(sent)}\r\n\r\n{sent}".encode()


def wait_until(condition: Callable[[], bool], timeout_seconds: float = 120) -> None:
    deadline = time.monotonic() + timeout_seconds
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.01)
