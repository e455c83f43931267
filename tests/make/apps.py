"""Applications that serve packages, run in a thread of the test's process."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from clozeline.registry.sources import parse_sources
from clozeline.serving.access import ApiKeys
from clozeline.serving.http.endpoint import DIALECTS
from clozeline.serving.http.operation import Dialects
from clozeline.serving.loading import LoadedModel, open_source
from clozeline.serving.models import Capacity, Catalogue, Service
from clozeline.serving.server import create_app
from tests.serving.conftest import run_app

KEY = "a-key-of-some-length"


def opened(*places: Path | str) -> list[LoadedModel]:
    """Open packages by their places, each a folder or `NAME=FOLDER`."""
    return [open_source(source, "int8") for source in parse_sources([*map(str, places)])]


def service_of(models: Iterable[LoadedModel], **capacity: Any) -> Service:
    service = Service(Capacity(**{"num_workers": 1} | capacity))
    service.open(models if isinstance(models, Catalogue) else Catalogue([*models]))
    return service


@contextmanager
def running(
    models: Iterable[LoadedModel] | Service, *, key: str | None = None, dialects: Dialects = DIALECTS, **capacity: Any
) -> Iterator[httpx.Client]:
    """Yield a client of a server of these models, which asks for `key` if there is one."""
    service = models if isinstance(models, Service) else service_of(models, **capacity)
    with run_app(create_app(service, ApiKeys.of([key]) if key else None, dialects=dialects)) as client:
        yield client
