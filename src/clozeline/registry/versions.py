"""Versions of the registered models: aliases that say which one is live, and packages on this machine."""

import re
from collections.abc import Collection
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Self

import mlflow
from mlflow.artifacts import download_artifacts
from mlflow.entities import Run
from mlflow.entities.model_registry import ModelVersion
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient

from clozeline.records.package import FILES, Precision
from clozeline.registry import models
from clozeline.registry.changes import Change, ChangeList, Changes, Kind, create_model, tried_again
from clozeline.registry.models import CANDIDATE, CHAMPION, PREVIOUS, ROLLED_BACK, Registered
from clozeline.system import errors, files
from clozeline.system.workspace import Workspace, tracking_uri
from clozeline.tracking.addresses import local_path, present
from clozeline.tracking.mlflow import answering, is_absent, loaded_as, prepare

ANY = "any"
# Time after a change during which a differing alias counts as still being written.
_NOT_BY_HAND = timedelta(minutes=10)
_BY_HAND = "the alias was moved in MLflow, without Clozeline"


def nowhere_to_go(name: str, champion: Registered | None, asked: str) -> errors.ArtifactError:
    return errors.ArtifactError(
        f"{name} has no version to go back to (champion: {champion or 'none'}; asked for: {asked})",
        do=f"name one (`clozeline rollback {name} --to VERSION`), or release a second version first",
    )


def no_second_time(champion: Registered, previous: Registered) -> errors.ArtifactError:
    if previous.was_rolled_back:
        return errors.ArtifactError(
            f"{champion.name} is rolled back already, from {previous} to {champion}",
            do=f"leave it, or put version {previous.version} back with `clozeline rollback {champion.name} --undo`",
        )
    return errors.ArtifactError(
        f"{champion.name} has no rollback to undo: {previous}, before {champion}, was not rolled back",
        do=f"`clozeline rollback {champion.name}` makes version {previous.version} the champion",
    )


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
        with answering(tracking_uri, "registry"):
            return cls(prepare(tracking_uri), tracking_uri)

    def names_with(self, alias: str) -> list[str]:
        """Return the names of our models that have `alias`."""
        with answering(self._tracking_uri, "models"):
            found = self._client.search_registered_models(filter_string=f"name LIKE '{models.MODEL_PREFIX}%'")
        return [model.name for model in found if alias in model.aliases]

    def at(self, name: str, alias: str) -> Registered | None:
        """Return the version behind `alias`; None if the model or the alias is missing."""
        with answering(self._tracking_uri, f"model {name}"):
            try:
                return _registered(self._client.get_model_version_by_alias(name, alias))
            except MlflowException as error:
                if is_absent(error):
                    return None
                raise

    def named_versions(self, name: str) -> frozenset[str]:
        """Return the versions of model `name` that have an alias."""
        with answering(self._tracking_uri, f"model {name}"):
            return frozenset(map(str, self._client.get_registered_model(name).aliases.values()))

    def version(self, name: str, version: str) -> Registered:
        """Return version `version` of model `name`.

        Raises:
            ArtifactError: it is missing.
        """
        with answering(self._tracking_uri, f"version {version} of model {name}"):
            return _registered(self._client.get_model_version(name, version))

    def run_of(self, version: Registered) -> Run:
        """Return the MLflow run that holds the evidence of `version`."""
        with answering(self._tracking_uri, f"run of {version}"):
            return self._client.get_run(version.run_id)

    def with_package(self, name: str, package_sha256: str) -> Registered | None:
        """Return the newest version registered with exactly this package, if any."""
        with answering(self._tracking_uri, f"model {name}"):
            found = self._client.search_model_versions(
                f"name = '{name}' AND tags.`{models.PACKAGE_SHA256}` = '{package_sha256}'"
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
        model_sha256: str = "",
        was_rolled_back: bool = False,
    ) -> Registered:
        """Create a version of `name` whose MLflow model is at `source`."""
        tags = {models.PACKAGE_SHA256: package_sha256, models.MODEL_SHA256: model_sha256}
        tags |= {ROLLED_BACK: "true"} if was_rolled_back else {}
        with answering(self._tracking_uri, f"model {name}"):
            create_model(self._client, name)
            return _registered(
                self._client.create_model_version(name, source, run_id=run_id, tags=tags, description=description)
            )

    def tag(self, version: Registered, key: str, value: str) -> None:
        with answering(self._tracking_uri, str(version)):
            self._client.set_model_version_tag(version.name, version.version, key, value)

    def serve(self, version: Registered, precision: Precision, processor: str, speedup: float | None) -> Registered:
        """Serve this precision of `version` by default on this processor; on another one a server measures both.

        `speedup`: measured time of fp32 / time of INT8; None for a package without INT8.
        """
        self.tag(version, models.SERVED, precision)
        speedup = None if speedup is None else round(speedup, 4)  # as it will be read back
        if speedup is not None:
            self.tag(version, models.INT8_SPEEDUP, str(speedup))
        self.tag(version, models.SERVED_ON, processor)  # last: a killed release chooses again unless this tag is there
        return replace(version, served=precision, served_on=processor, int8_speedup=speedup)

    def nominate(self, version: Registered) -> None:
        """Make `version` the candidate."""
        with answering(self._tracking_uri, str(version)):
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
        with answering(self._tracking_uri, f"model {name}"):
            return self._list.read(name).entries

    def settle(self, name: str) -> Registered | None:
        """Finish a change of the champion of model `name` that was killed halfway; return the champion, if any.

        An alias that was moved without Clozeline is entered in the list of changes.
        """
        with answering(self._tracking_uri, name):
            changes = self._list.read(name)
            if changes.pending:
                self._follow(name)
        champion = self.at(name, CHAMPION)
        last = changes.last if not changes.pending else None
        given = champion.version if champion else ""
        if last is None or last.after == given:
            return champion
        with answering(self._tracking_uri, name):
            if datetime.now(UTC) - last.when < _NOT_BY_HAND:  # another process may be writing the aliases
                self._follow(name, since=last.number)
            else:
                about = champion or self.version(name, last.after)
                by_hand = Change(kind="by hand", before=last.after, after=given, who="", why=_BY_HAND)
                self._list.append(name, by_hand, about.address, about.run_id)
                self._follow(name)
        return self.at(name, CHAMPION)

    def _change(self, version: Registered, change: Change) -> None:
        with answering(self._tracking_uri, str(version)):
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
            last = changes.last
            aliases = self._client.get_registered_model(name).aliases
            if last.after:
                if str(aliases.get(CHAMPION)) != last.after:  # first, so that whoever sees the champion sees its time
                    announced = str(models.Announcement.now(is_first=CHAMPION not in aliases))
                    self._client.set_model_version_tag(name, last.after, models.SERVE_FROM, announced)
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

    def roll_back(self, name: str, *, to: str | None = None, undo: bool = False, why: str = "") -> Change:
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
        with answering(self._tracking_uri, name):
            cut_off = self._list.read(name).pending
        champion = self.settle(name)
        if cut_off and cut_off[-1].kind == kind and to in {None, cut_off[-1].after}:
            return cut_off[-1]
        goal = self.version(name, to) if to else self.at(name, PREVIOUS)
        if not champion or not goal or champion.version == goal.version:
            raise nowhere_to_go(name, champion, f"version {to}" if to else f"previous: {goal or 'none'}")
        if to is None and goal.was_rolled_back is not undo:
            raise no_second_time(champion, goal)
        change = Change(kind=kind, before=champion.version, after=goal.version, why=why)
        self._change(goal, change)
        return change


def _registered(version: ModelVersion) -> Registered:
    return Registered.of(version.name, str(version.version), version.run_id or "", version.source or "", version.tags)


def find_version(registry: Registry, uri: str) -> Registered:
    """Return the version behind `uri`.

    Raises:
        ParamsError: `uri` is not a registry URI.
        ArtifactError: the model, version or alias is missing.
        TransientError: the registry does not answer.
    """
    named = models.MODEL_URI.fullmatch(uri)
    if named is None:
        problem = f"{uri} is not the URI of a registered model, models:/NAME@ALIAS or models:/NAME/VERSION"
        raise errors.ParamsError(problem, do="for example: models:/clozeline-encoder@champion")
    if named["version"]:
        return registry.version(named["name"], named["version"])
    found = registry.at(named["name"], named["alias"])
    if found is None:
        raise errors.ArtifactError(
            f"the registry has no {uri}: no version has this alias", do="run `clozeline release` (or `make run`) first"
        )
    return found


def fetch_package(uri: str, workspace: Workspace) -> tuple[Path, Registered]:
    """Return folder and version of the package behind `uri`: in place if it is on this machine, else as a copy under
    `work/registry`.

    Fetching a new copy for an alias removes the copies of this model's versions that no alias names any more.

    Raises:
        ParamsError, ArtifactError, TransientError: see `find_version`; or the files are gone.
    """
    address = tracking_uri(workspace)
    registry = Registry.open(address)
    version = find_version(registry, uri)
    with answering(address, str(version)):
        source = MlflowClient(address, registry_uri=address).get_model_version_download_uri(
            version.name, version.version
        )
    model = local_path(present(source, address))
    copy = workspace.work / "registry" / copy_name(version)
    if model is None and not copy.exists():
        with files.replacing_folder(copy) as folder, answering(address, files=f"files of {version}"):
            download_artifacts(artifact_uri=source, dst_path=str(folder), tracking_uri=address)
        if "@" in uri:
            _forget(copy.parent, version, registry.named_versions(version.name))
    package = models.package_in(model or copy)
    if package is None:
        problem = f"the files of {version} are gone: no {FILES.manifest} under {model or copy}"
        raise errors.ArtifactError(problem, do="restore that folder, or release the model again as a new version")
    return package, version


def copy_name(version: Registered) -> str:
    """Return the name, under `work/registry`, of the copy of a version."""
    return f"{version.name}-{version.version}-{version.package_sha256[:12]}"


def check_loaded_by_mlflow(package: Path) -> None:
    """Compare the package inside an MLflow model with the version that MLflow loaded it as.

    A model that MLflow loaded from a folder has no version and is not compared.

    Raises:
        ArtifactError: it differs from the registered package.
        TransientError: the registry does not answer.
    """
    loaded = loaded_as(package.parents[1])
    if loaded is None:
        return
    address = mlflow.get_registry_uri()
    version = Registry(MlflowClient(address, registry_uri=address), address).version(*loaded)
    models.check_registered(package, version)


def _forget(copies: Path, fetched: Registered, named: Collection[str]) -> None:
    """Remove the copies of the versions of this model that are neither `fetched` nor among `named`."""
    of_this_model = re.compile(rf"{re.escape(fetched.name)}-(?P<version>\d+)-[0-9a-f]*")
    for copy in copies.iterdir():
        found = of_this_model.fullmatch(copy.name)
        if found and found["version"] not in {fetched.version, *named}:
            files.remove_folder(copy)
