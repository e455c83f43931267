"""Versions of the registered models and the aliases that say which one is live."""

from dataclasses import dataclass, replace
from typing import Final, Self

from mlflow.entities.model_registry import ModelVersion
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient

from clozeline.artifacts.manifest import Precision
from clozeline.errors import ArtifactError
from clozeline.registry import CANDIDATE, CHAMPION, MODEL_PREFIX, PREVIOUS
from clozeline.registry.client import is_absent, told
from clozeline.registry.own_database import SERVED, SERVED_AS, SERVED_ON
from clozeline.tracking.database import prepare

PACKAGE_SHA256: Final = "clozeline.package_sha256"
ROLLED_BACK: Final = "clozeline.rolled_back"


@dataclass(frozen=True, slots=True)
class Registered:
    """One version of one model."""

    name: str
    version: str
    run_id: str
    """The MLflow run that holds its evidence."""
    package_sha256: str
    was_rolled_back: bool
    """A person took it down: no release puts it back by itself."""
    served: Precision | None = None
    """Which of its graphs answers who asks for none; None: what its manifest says."""
    served_on: str | None = None
    """The processor that it was chosen on."""
    address: str = ""
    """Of its files, as MLflow wrote it down when it was registered."""

    def __str__(self) -> str:
        return f"{self.name} version {self.version}"


@dataclass(frozen=True, slots=True)
class Rollback:
    name: str
    champion: str
    """The version that is live now,"""
    previous: str
    """and the one that was before."""


class Registry:
    """The registry at one address."""

    def __init__(self, client: MlflowClient, tracking_uri: str) -> None:
        self._client = client
        self._tracking_uri = tracking_uri

    @classmethod
    def open(cls, tracking_uri: str) -> Self:
        """The registry at `tracking_uri`; a local database is made if there is none.

        Raises:
            TransientError: it does not answer.
        """
        with told("registry", tracking_uri):
            return cls(prepare(tracking_uri), tracking_uri)

    def names_with(self, alias: str) -> list[str]:
        """Our models that have a version called `alias`."""
        with told("models", self._tracking_uri):
            models = self._client.search_registered_models(filter_string=f"name LIKE '{MODEL_PREFIX}%'")
        return [model.name for model in models if alias in model.aliases]

    def at(self, name: str, alias: str) -> Registered | None:
        """The version called `alias`, if there is one."""
        with told(f"model {name}", self._tracking_uri):
            try:
                return _registered(self._client.get_model_version_by_alias(name, alias))
            except MlflowException as error:
                if is_absent(error):
                    return None
                raise

    def named_versions(self, name: str) -> frozenset[str]:
        """Those of model `name` that an alias stands for."""
        with told(f"model {name}", self._tracking_uri):
            return frozenset(map(str, self._client.get_registered_model(name).aliases.values()))

    def version(self, name: str, version: str) -> Registered:
        """Version `version` of model `name`.

        Raises:
            ArtifactError: there is none.
        """
        with told(f"version {version} of model {name}", self._tracking_uri):
            return _registered(self._client.get_model_version(name, version))

    def with_package(self, name: str, package_sha256: str) -> Registered | None:
        """The newest version that was registered with just this package, if there is one."""
        with told(f"model {name}", self._tracking_uri):
            found = self._client.search_model_versions(
                f"name = '{name}' AND tags.`{PACKAGE_SHA256}` = '{package_sha256}'"
            )
        return max(map(_registered, found), key=lambda version: int(version.version), default=None)

    def register(
        self,
        name: str,
        *,
        source: str,
        run_id: str,
        package_sha256: str,
        description: str,
        was_rolled_back: bool = False,
    ) -> Registered:
        """A new version of `name` whose model lies at `source`."""
        tags = {PACKAGE_SHA256: package_sha256} | ({ROLLED_BACK: "true"} if was_rolled_back else {})
        with told(f"model {name}", self._tracking_uri):
            try:
                self._client.create_registered_model(name)
            except MlflowException as error:
                if error.error_code != "RESOURCE_ALREADY_EXISTS":
                    raise
            return _registered(
                self._client.create_model_version(name, source, run_id=run_id, tags=tags, description=description)
            )

    def tag(self, version: Registered, key: str, value: str) -> None:
        with told(str(version), self._tracking_uri):
            self._client.set_model_version_tag(version.name, version.version, key, value)

    def serve(self, version: Registered, precision: Precision, processor: str) -> Registered:
        """Let this graph of `version` answer who asks for none, on this processor; elsewhere a server measures."""
        self.tag(version, SERVED, precision)
        self.tag(version, SERVED_ON, processor)
        return replace(version, served=precision, served_on=processor)

    def nominate(self, version: Registered) -> None:
        """Make `version` the candidate."""
        with told(str(version), self._tracking_uri):
            self._client.set_registered_model_alias(version.name, CANDIDATE, version.version)

    def promote(self, version: Registered) -> None:
        """Make `version` the champion, and the champion the previous one."""
        champion = self.at(version.name, CHAMPION)
        with told(str(version), self._tracking_uri):
            # In this order: killed between two calls, there still is a champion.
            if champion and champion.version != version.version:
                self._client.set_registered_model_alias(version.name, PREVIOUS, champion.version)
            self._client.set_registered_model_alias(version.name, CHAMPION, version.version)
            self._client.delete_registered_model_alias(version.name, CANDIDATE)

    def roll_back(self, name: str, *, undo: bool = False) -> Rollback:
        """Let the champion and the previous version change places: down with the champion, or with `undo` up again.

        Raises:
            ArtifactError: there is no previous version; it was taken down itself, or with `undo` it was not.
        """
        champion, previous = self.at(name, CHAMPION), self.at(name, PREVIOUS)
        if not champion or not previous:
            raise ArtifactError(
                f"{name} has no version to go back to",
                given=f"champion: {champion or 'none'}; previous: {previous or 'none'}",
                expected="a champion that took the place of another one",
                do="release a second version first (`clozeline run` after a change)",
            )
        if previous.was_rolled_back is not undo:
            raise _no_second_time(champion, previous)
        with told(name, self._tracking_uri):
            if not undo:
                self._client.set_model_version_tag(name, champion.version, ROLLED_BACK, "true")
            self._client.delete_model_version_tag(name, previous.version, ROLLED_BACK)
            self._client.set_registered_model_alias(name, CHAMPION, previous.version)
            self._client.set_registered_model_alias(name, PREVIOUS, champion.version)
        return Rollback(name=name, champion=previous.version, previous=champion.version)


def _no_second_time(champion: Registered, previous: Registered) -> ArtifactError:
    if previous.was_rolled_back:
        return ArtifactError(
            f"{champion.name} is rolled back already",
            given=f"champion: {champion}; previous: {previous}, which was taken down",
            expected="a previous version that was good",
            do=f"leave it, or put version {previous.version} back with `clozeline rollback {champion.name} --undo`",
        )
    return ArtifactError(
        f"{champion.name} has no rollback to undo",
        given=f"champion: {champion}; previous: {previous}, which nobody took down",
        expected="a previous version that was rolled back",
        do=f"`clozeline rollback {champion.name}` makes version {previous.version} the champion",
    )


def _registered(version: ModelVersion) -> Registered:
    return Registered(
        name=version.name,
        version=str(version.version),
        run_id=version.run_id or "",
        address=version.source or "",
        package_sha256=version.tags.get(PACKAGE_SHA256, ""),
        was_rolled_back=version.tags.get(ROLLED_BACK) == "true",
        served=SERVED_AS.get(version.tags.get(SERVED, "")),
        served_on=version.tags.get(SERVED_ON),
    )
