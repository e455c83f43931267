"""The servers whose traffic is added up."""

from clozeline.errors import ParamsError
from clozeline.serving.models.sources import REGISTRY_SCHEME


def urls_of(given: str) -> list[str]:
    """Return the URLs in `given`, separated by commas.

    Raises:
        ParamsError: it is the address of a registered model, which does not say who serves it.
    """
    if given.startswith(REGISTRY_SCHEME):
        raise ParamsError(
            f"the registry does not know which servers answer for {given}",
            do="name the servers: CLOZELINE_SERVER=http://10.0.0.5:8000,http://10.0.0.6:8000",
        )
    return [url.strip() for url in given.split(",") if url.strip()]
