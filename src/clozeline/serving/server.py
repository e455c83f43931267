"""The server process: opens the port, loads the models, serves, and stops without losing accepted requests."""

import errno
import os
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from clozeline.artifacts.export.manifest import Precision
from clozeline.errors import ParamsError
from clozeline.serving.app import create_app
from clozeline.serving.edge.access import ApiKeys
from clozeline.serving.edge.hosts import AllowedHosts
from clozeline.serving.models.catalogue import Catalogue
from clozeline.serving.models.service import Capacity, Service
from clozeline.serving.models.sources import ModelSource
from clozeline.serving.models.watching import Watcher
from clozeline.serving.observe.tracing import tracing
from clozeline.serving.uvicorn_adapter import ModelServer, configured


@dataclass(frozen=True, slots=True)
class Settings:
    """Where and how to serve."""

    host: str
    port: int
    """0: any free port."""
    capacity: Capacity
    precision: Precision | None
    """None: chosen for each model, see models/precision.py."""
    keys: ApiKeys
    hosts: AllowedHosts
    watch_seconds: float
    """Interval between polls of the registry's aliases, in seconds; 0: never."""
    traces: bool = False
    """Whether OpenTelemetry gets spans of each request."""


Announce = Callable[[str, Catalogue], None]
"""Called with the server's URL once the models are loaded."""


def run(sources: Sequence[ModelSource], settings: Settings, announce: Announce) -> None:
    """Serve `sources` until SIGTERM or Ctrl+C, then answer the accepted requests and exit with 0.

    That lasts until the last deadline of an accepted request; slow clients get a little longer. A further Ctrl+C ends
    all requests with 503, and the exit code is 130. The port is open while the models load: `/health/live` answers,
    routes that need a model answer 503.

    Raises:
        ParamsError: the port cannot be opened, or the address of the span collector is invalid.
        ArtifactError: a model is missing, or its files differ from the manifest.
        TransientError: the registry does not answer, memory does not suffice, or a worker thread failed.
    """
    listener = _listen(settings.host, settings.port)
    # One thread tokenizes; by default the tokenizer would use every core of the host.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    service = Service(settings.capacity, tracing(settings.traces))
    app = create_app(service, settings.keys, hosts=settings.hosts)

    watcher = Watcher(service, sources, settings.precision, settings.watch_seconds)

    def load() -> None:
        catalogue = watcher.load()
        if service.phase == "stopping":
            return
        service.open(catalogue)
        watcher.start()
        announce(_url(listener), catalogue)

    try:
        ModelServer(configured(app), service, load).serve_until_told_to_stop(listener)
    finally:
        watcher.stop()


def _listen(host: str, port: int) -> socket.socket:
    try:
        family, *_ = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return socket.create_server((host, port), family=family, backlog=2048)
    except socket.gaierror as error:
        raise ParamsError(
            "the host name cannot be resolved",
            given=host,
            expected="an address of this machine, such as 127.0.0.1 or 0.0.0.0",
            do="correct --host",
        ) from error
    except (OSError, OverflowError) as error:
        raise _cannot_listen(host, port, error) from error


def _cannot_listen(host: str, port: int, error: Exception) -> ParamsError:
    number = getattr(error, "errno", None)
    reason, remedy = {
        errno.EADDRINUSE: (
            "another process uses the port",
            "choose another port; `--port 0` takes a free one",
        ),
        errno.EACCES: ("ports below 1024 need privileges", "choose a --port of 1024 or more"),
        errno.EADDRNOTAVAIL: ("this machine does not have the address", "correct --host"),
    }.get(number or 0, (str(error), "correct --host or --port"))
    return ParamsError(
        f"cannot listen on {host} port {port}: {reason}",
        given=f"--host {host} --port {port}",
        expected="a free port on this machine",
        do=remedy,
    )


def _url(listener: socket.socket) -> str:
    """Return the URL for clients on this machine. A wildcard address such as 0.0.0.0 becomes the loopback."""
    host, port = listener.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{host}]:{port}" if listener.family == socket.AF_INET6 else f"http://{host}:{port}"
