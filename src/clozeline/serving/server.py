"""The process: takes the port, loads the models behind it, serves, and stops without losing what it accepted."""

import asyncio
import errno
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

import uvicorn
from starlette.types import ASGIApp

from clozeline.errors import ParamsError, TransientError
from clozeline.inference.manifest import Precision
from clozeline.serving.app import create_app
from clozeline.serving.edge.access import ApiKeys
from clozeline.serving.edge.body_limit import MAX_BODY_SECONDS
from clozeline.serving.models.catalogue import Catalogue
from clozeline.serving.models.loading import open_source
from clozeline.serving.models.service import Capacity, Service
from clozeline.serving.models.sources import ModelSource
from clozeline.serving.models.watching import AliasWatcher
from clozeline.serving.observe.tracing import tracing
from clozeline.serving.wire import JsonHttpProtocol

_LOG = logging.getLogger(__name__)
_LAST_LOOK_SECONDS = 0.05
_TELLING_SECONDS = 0.5
"""For the word that nothing is waited for any more to reach its clients."""
WRITING_SECONDS = 10.0
"""After the last deadline, for a client to take its answer."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Where and how to serve."""

    host: str
    port: int
    """0: any free one."""
    capacity: Capacity
    precision: Precision | None
    """None: of each model the one that was found fit."""
    keys: ApiKeys
    watch_seconds: float
    """Between two looks at the registry: has an alias moved? 0: never."""
    traces: bool = False
    """Whether OpenTelemetry is told of each request."""


Announce = Callable[[str, Catalogue], None]
"""Called with the server's URL once the models are loaded."""


def run(sources: Sequence[ModelSource], settings: Settings, announce: Announce) -> None:
    """Serve `sources` until SIGTERM or Ctrl+C; then answer what has been accepted, and exit with 0.

    That takes until the last deadline of what was accepted, at most. A further Ctrl+C sends it all away, and the exit
    code is 130. The port is open while the models load: `/health/live` answers, everything else says 503.

    Raises:
        ParamsError: the host or port cannot be had, or spans cannot be sent where they should be.
        ArtifactError: a model is not there, or its bytes are not those that were exported.
        TransientError: the registry does not answer; or a thread that runs models ended.
    """
    listener = _listen(settings.host, settings.port)
    # Tokens of a request are counted in one thread; by itself the tokenizer would take every core of the host.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    service = Service(settings.capacity, tracing(settings.traces))
    config = configured(create_app(service, settings.keys))

    def load() -> None:
        catalogue = Catalogue([open_source(source, settings.precision) for source in sources])
        service.open(catalogue)
        AliasWatcher(service, sources, settings.precision, settings.watch_seconds).start()
        announce(_url(listener), catalogue)

    server = _ModelServer(config, service, load)
    with _exit_when_told_to_stop(server):
        server.run(sockets=[listener])
    server.raise_failure()


def configured(app: ASGIApp) -> uvicorn.Config:
    """How uvicorn is to serve `app`."""
    return uvicorn.Config(
        app,
        http=JsonHttpProtocol,
        log_config=None,
        log_level="warning",
        access_log=False,
        server_header=False,
        ws="none",
    )


class _ModelServer(uvicorn.Server):
    """Loads the models after it has begun to listen, and says not ready as soon as it is told to stop."""

    def __init__(self, config: uvicorn.Config, service: Service, load: Callable[[], None]) -> None:
        super().__init__(config)
        self._service = service
        self._load = load
        self._loading: asyncio.Task[None] | None = None
        self._worker_fault: str | None = None
        self.is_hurried = False
        """Told to stop a second time: what was accepted is not waited for."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._loading = asyncio.create_task(asyncio.to_thread(self._load))
        self._loading.add_done_callback(self._stop_if_failed)

    async def on_tick(self, counter: int) -> bool:
        return await super().on_tick(counter) or self._fault() is not None

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        # Who has been let in by the system is let in here before the door is closed.
        await asyncio.sleep(_LAST_LOOK_SECONDS)
        ending = asyncio.create_task(self._end_what_does_not_end())
        await super().shutdown(sockets)
        ending.cancel()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._service.drain()
        if sig == signal.SIGINT and self.should_exit and not self.is_hurried:
            self.is_hurried = True
        else:
            super().handle_exit(sig, frame)

    def raise_failure(self) -> None:
        """Raise what ended the loading of the models, or a worker, if anything did."""
        if self._loading and self._loading.done() and not self._loading.cancelled():
            self._loading.result()
        if self._worker_fault:
            raise TransientError(
                "a thread that runs models is not well",
                given=self._worker_fault,
                expected="threads that answer",
                do="start the server again; the traceback is above",
            )

    async def _end_what_does_not_end(self) -> None:
        """Hang up where a body, or a client that takes its answer, does not come to an end; or where it is to be now.

        Each request that was accepted has a deadline, and is answered by then: that is how long they are waited for. Of
        those whose body is on its way the deadline comes with the body.
        """
        asking = self._service.asking
        bodies_seconds = time.monotonic() + MAX_BODY_SECONDS
        while not self.is_hurried and time.monotonic() < WRITING_SECONDS + max(
            bodies_seconds, asking.last_deadline_seconds
        ):
            await asyncio.sleep(_LAST_LOOK_SECONDS)
        if self.is_hurried:
            asking.stop()
            await asyncio.sleep(_TELLING_SECONDS)
        for connection in list(self.server_state.connections):
            connection.transport.abort()

    def _fault(self) -> str | None:
        """What is wrong with the workers; a server that cannot answer ends, so that it is started again."""
        self._worker_fault = self._worker_fault or self._service.fault()
        return self._worker_fault

    def _stop_if_failed(self, loading: asyncio.Task[None]) -> None:
        if not loading.cancelled() and loading.exception():
            self.should_exit = True


@contextmanager
def _exit_when_told_to_stop(server: _ModelServer) -> Iterator[None]:
    """To be stopped is no failure: uvicorn raises the signal again once it has shut down, and this is who hears it."""

    def end(number: int, frame: FrameType | None) -> None:
        sys.exit(128 + signal.SIGINT if server.is_hurried else 0)

    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _listen(host: str, port: int) -> socket.socket:
    try:
        family, *_ = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return socket.create_server((host, port), family=family, backlog=2048)
    except socket.gaierror as error:
        raise ParamsError(
            "the host is not known",
            given=host,
            expected="an address of this machine, as 127.0.0.1 or 0.0.0.0",
            do="correct --host",
        ) from error
    except (OSError, OverflowError) as error:
        raise _cannot_listen(host, port, error) from error


def _cannot_listen(host: str, port: int, error: Exception) -> ParamsError:
    number = getattr(error, "errno", None)
    reason, remedy = {
        errno.EADDRINUSE: (
            "another process listens there",
            "choose another port: `--port 0` takes a free one",
        ),
        errno.EACCES: ("ports below 1024 are not for everyone", "choose a --port from 1024 on"),
        errno.EADDRNOTAVAIL: ("the address is not of this machine", "correct --host"),
    }.get(number or 0, (str(error), "correct --host or --port"))
    return ParamsError(
        f"cannot listen on {host} port {port}: {reason}",
        given=f"--host {host} --port {port}",
        expected="a free port of this machine",
        do=remedy,
    )


def _url(listener: socket.socket) -> str:
    """Where it is found from this machine: an address that stands for all of its own is none to ask."""
    host, port = listener.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{host}]:{port}" if listener.family == socket.AF_INET6 else f"http://{host}:{port}"
