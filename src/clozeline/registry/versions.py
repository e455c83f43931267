"""Versions of the registered models, and the aliases that say which version is live."""

from dataclasses import dataclass, replace
from typing import Final, Self

from mlflow.entities.model_registry import ModelVersion
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient

from clozeline.artifacts.export.manifest import Precision
from clozeline.errors import ArtifactError
from clozeline.registry import CANDIDATE, CHAMPION, MODEL_PREFIX, PACKAGE_SHA256, PREVIOUS
from clozeline.registry.client import told
from clozeline.registry.own_database import INT8_SPEEDUP, SERVED, SERVED_AS, SERVED_ON
from clozeline.tracking.database import prepare
from clozeline.tracking.mlflow_adapter import is_absent

ROLLED_BACK: Final = "clozeline.rolled_back"
TRAINED_SHA256: Final = "clozeline.trained_sha256"
REPLACED: Final = "clozeline.replaced"
"""Tag of a champion: the version that was live before it. Written first, so that a killed change can be finished."""


@dataclass(frozen=True, slots=True)
class Registered:
    """One version of one model."""

    name: str
    version: str
    run_id: str
    """MLflow run that holds its evidence."""
    package_sha256: str
    was_rolled_back: bool
    """Whether it was rolled back by hand; a release then holds it instead of promoting it."""
    served: Precision | None = None
    """Precision to serve by default; None: the one that the manifest names."""
    served_on: str | None = None
    """Processor that `served` was chosen on."""
    int8_speedup: float | None = None
    """Time of fp32 / time of INT8 on that processor, the figure behind the choice."""
    address: str = ""
    """Address of its files, as MLflow recorded it at registration."""
    trained_sha256: str = ""
    """sha256 of the list of its trained files; empty if none were stored with it."""

    def __str__(self) -> str:
        return f"{self.name} version {self.version}"


@dataclass(frozen=True, slots=True)
class Rollback:
    name: str
    champion: str
    """Version that is live now."""
    previous: str
    """Version that was live before."""


class Registry:
    """The registry at one address."""

    def __init__(self, client: MlflowClient, tracking_uri: str) -> None:
        self._client = client
        self._tracking_uri = tracking_uri

    @classmethod
    def open(cls, tracking_uri: str) -> Self:
        """Open the registry at `tracking_uri`; create a local database if it is missing.

        Raises:
            ArtifactError: the local database is damaged, or the server refuses the caller.
            TransientError: the registry does not answer.
        """
        with told("registry", tracking_uri):
            return cls(prepare(tracking_uri), tracking_uri)

    def names_with(self, alias: str) -> list[str]:
        """Return the names of our models that have `alias`."""
        with told("models", self._tracking_uri):
            models = self._client.search_registered_models(filter_string=f"name LIKE '{MODEL_PREFIX}%'")
        return [model.name for model in models if alias in model.aliases]

    def at(self, name: str, alias: str) -> Registered | None:
        """Return the version behind `alias`; None if the model or the alias is missing."""
        with told(f"model {name}", self._tracking_uri):
            try:
                return _registered(self._client.get_model_version_by_alias(name, alias))
            except MlflowException as error:
                if is_absent(error):
                    return None
                raise

    def named_versions(self, name: str) -> frozenset[str]:
        """Return the versions of model `name` that have an alias."""
        with told(f"model {name}", self._tracking_uri):
            return frozenset(map(str, self._client.get_registered_model(name).aliases.values()))

    def version(self, name: str, version: str) -> Registered:
        """Return version `version` of model `name`.

        Raises:
            ArtifactError: it is missing.
        """
        with told(f"version {version} of model {name}", self._tracking_uri):
            return _registered(self._client.get_model_version(name, version))

    def with_package(self, name: str, package_sha256: str) -> Registered | None:
        """Return the newest version registered with exactly this package, if any."""
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
        trained_sha256: str = "",
        description: str,
        was_rolled_back: bool = False,
    ) -> Registered:
        """Create a version of `name` whose MLflow model is at `source`."""
        tags = {PACKAGE_SHA256: package_sha256, TRAINED_SHA256: trained_sha256}
        tags |= {ROLLED_BACK: "true"} if was_rolled_back else {}
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

    def serve(
        self, version: Registered, precision: Precision, processor: str, int8_speedup: float | None
    ) -> Registered:
        """Serve this precision of `version` by default on this processor; on another one a server measures both.

        `int8_speedup`: measured time of fp32 / time of INT8; None for a package without INT8.
        """
        self.tag(version, SERVED, precision)
        speedup = None if int8_speedup is None else round(int8_speedup, 4)  # as it will be read back
        if speedup is not None:
            self.tag(version, INT8_SPEEDUP, str(speedup))
        self.tag(version, SERVED_ON, processor)  # last: a killed release chooses again unless this tag is there
        return replace(version, served=precision, served_on=processor, int8_speedup=speedup)

    def nominate(self, version: Registered) -> None:
        """Make `version` the candidate."""
        with told(str(version), self._tracking_uri):
            self._client.set_registered_model_alias(version.name, CANDIDATE, version.version)

    def promote(self, version: Registered) -> None:
        """Make `version` the champion, and the champion the previous one. A killed promotion can be repeated."""
        champion = self.settle(version.name)
        if champion is None or champion.version != version.version:
            self._put_up(version, champion)

    def settle(self, name: str) -> Registered | None:
        """Finish a change of the champion of model `name` that was killed halfway; return the champion, if any."""
        champion = self.at(name, CHAMPION)
        if champion is None:
            return None
        previous, candidate = self.at(name, PREVIOUS), self.at(name, CANDIDATE)
        with told(name, self._tracking_uri):
            replaced = self._client.get_model_version(name, champion.version).tags.get(REPLACED)
            if replaced and (previous is None or previous.version != replaced):
                self._client.set_registered_model_alias(name, PREVIOUS, replaced)
            if champion.was_rolled_back:
                self._client.delete_model_version_tag(name, champion.version, ROLLED_BACK)
            if candidate and candidate.version == champion.version:
                self._client.delete_registered_model_alias(name, CANDIDATE)
        return champion

    def _put_up(self, version: Registered, champion: Registered | None) -> None:
        if champion is not None:
            self.tag(version, REPLACED, champion.version)
        with told(str(version), self._tracking_uri):
            self._client.set_registered_model_alias(version.name, CHAMPION, version.version)
        self.settle(version.name)

    def roll_back(self, name: str, *, to: str | None = None, undo: bool = False) -> Rollback:
        """Make version `to` the champion, by default the previous one; the champion becomes the previous one.

        Without `undo`, mark the old champion as rolled back, so that no release promotes it again; with it, take the
        mark of the previous version away. A version named by `to` loses its mark, too.

        Raises:
            ArtifactError: version `to`, the champion or the previous version is missing; `to` is the champion; or the
                previous version was rolled back itself (with `undo`: was not).
        """
        champion = self.settle(name)
        goal = self.version(name, to) if to else self.at(name, PREVIOUS)
        if not champion or not goal or champion.version == goal.version:
            asked = f"asked for: version {to}" if to else f"previous: {goal or 'none'}"
            raise ArtifactError(
                f"{name} has no version to go back to",
                given=f"champion: {champion or 'none'}; {asked}",
                expected="a champion that replaced another version",
                do=f"name another version (`clozeline rollback {name} --to VERSION`); without one, release a second"
                " version first (`clozeline run` after a change)",
            )
        if to is None and goal.was_rolled_back is not undo:
            raise _no_second_time(champion, goal)
        if not undo:
            self.tag(champion, ROLLED_BACK, "true")
        self._put_up(goal, champion)
        return Rollback(name=name, champion=goal.version, previous=champion.version)


def _no_second_time(champion: Registered, previous: Registered) -> ArtifactError:
    if previous.was_rolled_back:
        return ArtifactError(
            f"{champion.name} is rolled back already",
            given=f"champion: {champion}; previous: {previous}, which was rolled back",
            expected="a previous version that was not rolled back",
            do=f"leave it, or put version {previous.version} back with `clozeline rollback {champion.name} --undo`",
        )
    return ArtifactError(
        f"{champion.name} has no rollback to undo",
        given=f"champion: {champion}; previous: {previous}, which was not rolled back",
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
        trained_sha256=version.tags.get(TRAINED_SHA256, ""),
        was_rolled_back=version.tags.get(ROLLED_BACK) == "true",
        served=SERVED_AS.get(version.tags.get(SERVED, "")),
        served_on=version.tags.get(SERVED_ON),
        int8_speedup=float(version.tags[INT8_SPEEDUP]) if INT8_SPEEDUP in version.tags else None,
    )
