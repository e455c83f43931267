"""Versions of the registered models, and the aliases that say which version is live."""

from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Final, Self

from mlflow.entities import Run
from mlflow.entities.model_registry import ModelVersion
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient

from clozeline.artifacts.export.manifest import Precision
from clozeline.registry import (
    CANDIDATE,
    CHAMPION,
    INT8_SPEEDUP,
    MODEL_PREFIX,
    PACKAGE_SHA256,
    PREVIOUS,
    ROLLED_BACK,
    SERVE_FROM,
    SERVED,
    SERVED_ON,
    Registered,
)
from clozeline.registry.announcement import Announcement
from clozeline.registry.changes import Change, ChangeList, Changes, Kind
from clozeline.registry.client import create_model, registry_errors, tried_again
from clozeline.registry.refusals import no_second_time, nowhere_to_go
from clozeline.tracking.database import prepare
from clozeline.tracking.mlflow_adapter import is_absent

ANY: Final = "any"
_NOT_BY_HAND: Final = timedelta(minutes=10)
"""Time after a change during which a differing alias counts as still being written."""
_BY_HAND: Final = "the alias was moved in MLflow, without Clozeline"


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
        self._list = ChangeList(client)

    @classmethod
    def open(cls, tracking_uri: str) -> Self:
        """Open the registry at `tracking_uri`; create a local database if it is missing.

        Raises:
            ArtifactError: the local database is damaged, or the server refuses the caller.
            TransientError: the registry does not answer.
        """
        with registry_errors("registry", tracking_uri):
            return cls(prepare(tracking_uri), tracking_uri)

    def names_with(self, alias: str) -> list[str]:
        """Return the names of our models that have `alias`."""
        with registry_errors("models", self._tracking_uri):
            models = self._client.search_registered_models(filter_string=f"name LIKE '{MODEL_PREFIX}%'")
        return [model.name for model in models if alias in model.aliases]

    def at(self, name: str, alias: str) -> Registered | None:
        """Return the version behind `alias`; None if the model or the alias is missing."""
        with registry_errors(f"model {name}", self._tracking_uri):
            try:
                return _registered(self._client.get_model_version_by_alias(name, alias))
            except MlflowException as error:
                if is_absent(error):
                    return None
                raise

    def named_versions(self, name: str) -> frozenset[str]:
        """Return the versions of model `name` that have an alias."""
        with registry_errors(f"model {name}", self._tracking_uri):
            return frozenset(map(str, self._client.get_registered_model(name).aliases.values()))

    def version(self, name: str, version: str) -> Registered:
        """Return version `version` of model `name`.

        Raises:
            ArtifactError: it is missing.
        """
        with registry_errors(f"version {version} of model {name}", self._tracking_uri):
            return _registered(self._client.get_model_version(name, version))

    def run_of(self, version: Registered) -> Run:
        """Return the MLflow run that holds the evidence of `version`."""
        with registry_errors(f"run of {version}", self._tracking_uri):
            return self._client.get_run(version.run_id)

    def with_package(self, name: str, package_sha256: str) -> Registered | None:
        """Return the newest version registered with exactly this package, if any."""
        with registry_errors(f"model {name}", self._tracking_uri):
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
        """Create a version of `name` whose MLflow model is at `source`."""
        tags = {PACKAGE_SHA256: package_sha256} | ({ROLLED_BACK: "true"} if was_rolled_back else {})
        with registry_errors(f"model {name}", self._tracking_uri):
            create_model(self._client, name)
            return _registered(
                self._client.create_model_version(name, source, run_id=run_id, tags=tags, description=description)
            )

    def tag(self, version: Registered, key: str, value: str) -> None:
        with registry_errors(str(version), self._tracking_uri):
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
        with registry_errors(str(version), self._tracking_uri):
            self._client.set_registered_model_alias(version.name, CANDIDATE, version.version)

    def promote(self, version: Registered, *, replacing: str | None = ANY, why: str = "", evidence: str = "") -> None:
        """Make `version` the champion, and the champion the previous version. A killed promotion can be repeated.

        `replacing`: version that the champion must still be; None: there must be no champion.

        Raises:
            ChampionChangedError: the champion is another one.
        """
        if replacing == ANY:
            champion = self.settle(version.name)
            replacing = champion.version if champion else None
        if replacing != version.version:
            change = Change(kind="promotion", before=replacing or "", after=version.version, why=why, evidence=evidence)
            self._change(version, change)

    def changes(self, name: str) -> tuple[Change, ...]:
        """Return the changes of the champion of model `name`, oldest first."""
        with registry_errors(f"model {name}", self._tracking_uri):
            return tuple(entry.change for entry in self._list.read(name).entries)

    def settle(self, name: str) -> Registered | None:
        """Finish a change of the champion of model `name` that was killed halfway; return the champion, if any.

        An alias that was moved without Clozeline is entered in the list of changes.
        """
        with registry_errors(name, self._tracking_uri):
            changes = self._list.read(name)
            if changes.pending:
                self._follow(name)
        champion = self.at(name, CHAMPION)
        last = changes.last if not changes.pending else None
        given = champion.version if champion else ""
        if last is None or last.change.after == given:
            return champion
        with registry_errors(name, self._tracking_uri):
            if datetime.now(UTC) - last.change.when < _NOT_BY_HAND:  # another process may be writing the aliases
                self._follow(name, since=last.number)
            else:
                about = champion or self.version(name, last.change.after)
                by_hand = Change(kind="by hand", before=last.change.after, after=given, who="", why=_BY_HAND)
                self._list.append(name, by_hand, about.address, about.run_id)
                self._follow(name)
        return self.at(name, CHAMPION)

    def _change(self, version: Registered, change: Change) -> None:
        with registry_errors(str(version), self._tracking_uri):
            self._list.append(version.name, change, version.address, version.run_id)
            self._follow(version.name)

    def _follow(self, name: str, since: int | None = None) -> None:
        """Let the aliases follow the list; try again while MLflow's database is busy."""
        tried_again(lambda: self._write_aliases(name, self._list.read(name), since))

    def _write_aliases(self, name: str, changes: Changes, since: int | None) -> None:
        """Write the aliases and marks that follow from the changes, and again if another change came meanwhile.

        Several processes may do this at once. Each looks at the list after its last write, so the last one to write
        leaves what the list says.
        """
        first = since or (changes.pending[0].number if changes.pending else None)
        while first is not None and changes.last is not None:
            for version, is_rolled_back in changes.rolled_back_since(first).items():
                self._mark(name, version, is_rolled_back)
            last = changes.last.change
            aliases = self._client.get_registered_model(name).aliases
            if last.after:
                if str(aliases.get(CHAMPION)) != last.after:  # first, so that whoever sees the champion sees its time
                    announced = str(Announcement.now(is_first=CHAMPION not in aliases))
                    self._client.set_model_version_tag(name, last.after, SERVE_FROM, announced)
                self._client.set_registered_model_alias(name, CHAMPION, last.after)
            if last.before:
                self._client.set_registered_model_alias(name, PREVIOUS, last.before)
            if str(aliases.get(CANDIDATE)) == last.after:
                self._client.delete_registered_model_alias(name, CANDIDATE)
            again = self._list.read(name)
            if again.last and again.last.number == changes.last.number:
                self._list.done(name, [entry for entry in again.pending if entry.number >= first])
                return
            changes = again

    def _mark(self, name: str, version: str, is_rolled_back: bool) -> None:
        is_marked = self._client.get_model_version(name, version).tags.get(ROLLED_BACK) == "true"
        if is_rolled_back and not is_marked:
            self._client.set_model_version_tag(name, version, ROLLED_BACK, "true")
        elif is_marked and not is_rolled_back:
            self._client.delete_model_version_tag(name, version, ROLLED_BACK)

    def roll_back(self, name: str, *, to: str | None = None, undo: bool = False, why: str = "") -> Rollback:
        """Make version `to` the champion, by default the previous one; the champion becomes the previous one.

        Without `undo`, mark the old champion as rolled back, so that no release promotes it again; with it, take the
        mark of the previous version away. A version named by `to` loses its mark, too. The same rollback is finished
        if it was killed halfway.

        Raises:
            ArtifactError: version `to`, the champion or the previous version is missing; `to` is the champion; or the
                previous version was rolled back itself (with `undo`: was not).
            ChampionChangedError: someone else changed the champion at the same time.
        """
        kind: Kind = "undo" if undo else "rollback"
        with registry_errors(name, self._tracking_uri):
            cut_off = self._list.read(name).pending
        champion = self.settle(name)
        if cut_off and cut_off[-1].change.kind == kind and to in {None, cut_off[-1].change.after}:
            return Rollback(name=name, champion=cut_off[-1].change.after, previous=cut_off[-1].change.before)
        goal = self.version(name, to) if to else self.at(name, PREVIOUS)
        if not champion or not goal or champion.version == goal.version:
            raise nowhere_to_go(name, champion, f"version {to}" if to else f"previous: {goal or 'none'}")
        if to is None and goal.was_rolled_back is not undo:
            raise no_second_time(champion, goal)
        self._change(goal, Change(kind=kind, before=champion.version, after=goal.version, why=why))
        return Rollback(name=name, champion=goal.version, previous=champion.version)


def _registered(version: ModelVersion) -> Registered:
    return Registered.of(version.name, str(version.version), version.run_id or "", version.source or "", version.tags)
