"""The record of a fleet in the registry.

Its entries are versions of the registered model `NAME.fleet`, its replicas tags of that model.

MLflow gives each version number once, which orders entries that several replicas append at once. A tag has one writer:
the replica itself, or whoever found it dead.
"""

from collections.abc import Iterator
from typing import Final, Self

from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient
from pydantic import ValidationError

from clozeline.registry import CHAMPION
from clozeline.registry.client import create_model, registry_errors, tried_again
from clozeline.registry.rollout import Entry, Replica, Rollout
from clozeline.tracking.database import prepare
from clozeline.tracking.mlflow_adapter import every, is_absent

SUFFIX: Final = ".fleet"
"""Suffix of the name of a registered model that holds the record of another model's fleet."""
_ENTRY: Final = "clozeline.rollout"
_REPLICA: Final = "clozeline.replica."
_PAGE: Final = 1000
_MOST_CHARACTERS: Final = 400
"""Longest problem that a replica notes: MLflow limits the length of a tag."""


class Fleet:
    """The record of the replicas that serve the champion of model `name`."""

    def __init__(self, client: MlflowClient, tracking_uri: str, name: str) -> None:
        self._client = client
        self._tracking_uri = tracking_uri
        self.name = name
        self._record = f"{name}{SUFFIX}"

    @classmethod
    def open(cls, tracking_uri: str, name: str) -> Self:
        """Open the record; raises the same errors as `Registry.open`."""
        with registry_errors("registry", tracking_uri):
            return cls(prepare(tracking_uri), tracking_uri, name)

    def create(self) -> None:
        """Create an empty record unless there is one.

        Raises:
            ArtifactError: the server refuses the caller.
            TransientError: the registry does not answer.
        """
        with registry_errors(self._record, self._tracking_uri):
            create_model(self._client, self._record, "Which version the replicas of a fleet serve, and who they are")

    def read(self, known: Rollout | None = None) -> Rollout:
        """Return the record, empty if there is none; the entries are read before the replicas.

        `known`: what this returned before. Then only the entries since are read, so a poll costs the same after years.

        Raises:
            ArtifactError: the server refuses the caller.
            TransientError: the registry does not answer.
        """
        with registry_errors(self._record, self._tracking_uri):
            entries = list(self._entries(known.number if known else 0))
            if known and known.last and (known.number, known.last) not in entries:  # restored from a backup, or deleted
                known, entries = None, list(self._entries())
            models = self._client.search_registered_models(filter_string=f"name = '{self._record}'")
            replicas = [replica for model in models for replica in _replicas(model.tags)]
            champions = self._client.search_registered_models(filter_string=f"name = '{self.name}'")
        champion = next((str(model.aliases.get(CHAMPION, "")) for model in champions), "")
        return Rollout.of(entries, replicas, champion, known)

    def note(self, replica: Replica) -> None:
        """Write what `replica` says about itself; raises the same errors as `read`."""
        short = replica.model_copy(update={"problem": replica.problem[:_MOST_CHARACTERS]})
        with registry_errors(self._record, self._tracking_uri):
            tried_again(
                lambda: self._client.set_registered_model_tag(
                    self._record, f"{_REPLICA}{short.key}", short.model_dump_json()
                )
            )

    def remove(self, key: str) -> None:
        """Remove the note of a replica that has ended, if it is there; raises the same errors as `read`."""
        with registry_errors(self._record, self._tracking_uri):
            try:
                self._client.delete_registered_model_tag(self._record, f"{_REPLICA}{key}")
            except MlflowException as error:
                if not is_absent(error):  # another replica was faster
                    raise

    def append(self, entry: Entry) -> None:
        """Append `entry`. Whether it counts, the record says when it is read again."""
        with registry_errors(f"version {entry.version} of {self.name}", self._tracking_uri):
            about = self._client.get_model_version(self.name, entry.version)
            tried_again(
                lambda: self._client.create_model_version(
                    self._record,
                    about.source or "",
                    run_id=about.run_id,
                    tags={_ENTRY: entry.model_dump_json()},
                    description=str(entry),
                    await_creation_for=0,  # it is ready at once
                )
            )

    def _entries(self, first: int = 0) -> Iterator[tuple[int, Entry]]:
        """Yield the entries from number `first` on. MLflow gives a number only once all lower ones can be read."""
        wanted = f"name = '{self._record}' AND version_number >= {first}"
        searched = (wanted, _PAGE, ["version_number ASC"])
        for version in every(self._client.search_model_versions, *searched):
            if _ENTRY in version.tags:
                yield int(version.version), Entry.model_validate_json(version.tags[_ENTRY])


def _replicas(tags: dict[str, str]) -> Iterator[Replica]:
    for key, value in sorted(tags.items()):
        if key.startswith(_REPLICA):
            try:
                yield Replica.model_validate_json(value)
            except ValidationError:  # it was edited by hand
                continue
