"""The versions whose data are still needed."""

from clozeline.registry import MODEL_PREFIX, Registered
from clozeline.registry.changes import ChangeList
from clozeline.registry.client import registry_errors
from clozeline.registry.versions import Registry
from clozeline.tracking.database import prepare
from clozeline.tracking.mlflow_adapter import every


def versions_in_use(tracking_uri: str) -> list[Registered]:
    """Return every version of our models that has an alias, or will have one when a killed change is finished.

    Raises:
        ArtifactError: a change names a version that is missing; or the server refuses the caller.
        TransientError: the registry does not answer.
    """
    found = []
    with registry_errors("models", tracking_uri):
        client = prepare(tracking_uri)
        registry, changes = Registry(client, tracking_uri), ChangeList(client)
        for model in every(client.search_registered_models, f"name LIKE '{MODEL_PREFIX}%'"):
            pending = [entry.change for entry in changes.read(model.name).pending]
            numbers = {*map(str, model.aliases.values())}.union(*((one.before, one.after) for one in pending))
            found += [registry.version(model.name, number) for number in sorted(numbers - {""})]
    return found
