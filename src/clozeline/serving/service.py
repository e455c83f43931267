"""What the routes share: the models once they are loaded, the worker threads, and whether to send requests here."""

from typing import Literal

from fastapi import Request

from clozeline.serving.catalogue import Catalogue
from clozeline.serving.errors import ApiError, problem
from clozeline.serving.workers import Workers

Phase = Literal["loading", "ready", "stopping"]


class Service:
    """Loading until `open` gives it models, stopping once `drain` was called; answers in between and while it stops."""

    def __init__(self, workers: Workers) -> None:
        self.workers = workers
        self._catalogue: Catalogue | None = None
        self._stopping = False

    def open(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue

    def drain(self) -> None:
        """Say not ready from now on; what has been accepted is still answered."""
        self._stopping = True

    def close(self) -> None:
        """End the worker threads, after what they have begun."""
        self.drain()
        self.workers.close()

    @property
    def phase(self) -> Phase:
        if self._stopping:
            return "stopping"
        return "loading" if self._catalogue is None else "ready"

    @property
    def catalogue(self) -> Catalogue:
        """The models.

        Raises:
            ApiError: 503, they are not loaded yet.
        """
        if self._catalogue is None:
            raise self.not_ready()
        return self._catalogue

    def not_ready(self) -> ApiError:
        return problem(
            503,
            "not_ready",
            f"the server is {self.phase}",
            given=f"phase {self.phase}",
            expected="phase ready",
            do="ask /health/ready until it answers 200",
            headers={"retry-after": "1"},
        )


def service_of(request: Request) -> Service:
    """The service of the application that received `request`."""
    service = request.app.state.service
    assert isinstance(service, Service)
    return service
