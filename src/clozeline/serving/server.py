"""The process: takes the port, loads the models behind it, serves, and stops without losing what it accepted."""

import errno
import os
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from clozeline.artifacts.manifest import Precision
from clozeline.errors import ParamsError
from clozeline.serving.app import create_app
from clozeline.serving.edge.access import ApiKeys
from clozeline.serving.models.catalogue import Catalogue
from clozeline.serving.models.loading import open_source
from clozeline.serving.models.service import Capacity, Service
from clozeline.serving.models.sources import ModelSource
from clozeline.serving.models.watching import AliasWatcher
from clozeline.serving.observe.tracing import tracing
from clozeline.serving.wire import ModelServer, configured


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
    app = create_app(service, settings.keys)

    def load() -> None:
        catalogue = Catalogue([open_source(source, settings.precision) for source in sources])
        service.open(catalogue)
        AliasWatcher(service, sources, settings.precision, settings.watch_seconds).start()
        announce(_url(listener), catalogue)

    ModelServer(configured(app), service, load).serve_until_told_to_stop(listener)


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
