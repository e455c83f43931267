"""The servers whose traffic is added up: those that are named, or the replicas in the record of a fleet."""

from clozeline.errors import ArtifactError
from clozeline.serving.models.sources import REGISTRY_SCHEME, ModelSource
from clozeline.workspace import Workspace, tracking_uri


def urls_of(given: str, workspace: Workspace) -> list[str]:
    """Return the URLs in `given`, separated by commas; for `models:/NAME@champion` those of the replicas of its fleet.

    Raises:
        ArtifactError: the fleet has no replica.
        TransientError: the registry does not answer.
    """
    if not given.startswith(REGISTRY_SCHEME):
        return [url.strip() for url in given.split(",") if url.strip()]
    from clozeline.registry.fleet import Fleet

    replicas = Fleet.open(tracking_uri(workspace), ModelSource.parse(given).registered_name).read().replicas
    if not replicas:
        raise ArtifactError(
            f"no replica serves {given} (`clozeline serve --fleet`)",
            do="start its replicas, or name the URLs of the servers, separated by commas",
        )
    return [replica.url for replica in replicas]
