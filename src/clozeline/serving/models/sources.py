"""Sources of models: folders of `dist/` and `models:/…` URIs of the registry, with their names for clients."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from clozeline import registry
from clozeline.artifacts.export.manifest import FILES, Task, read_manifest
from clozeline.errors import ArtifactError, ParamsError
from clozeline.inference.model_kinds import kind_of
from clozeline.registry import Registered
from clozeline.registry.signature import check_signature, signature_file

DIST = Path("dist")
REGISTRY_SCHEME = "models:/"
_NAMED = re.compile(r"(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)=(?P<place>.+)")


@dataclass(frozen=True, slots=True)
class ModelSource:
    """A model as the user names it: `[NAME=]models:/…` or `[NAME=]FOLDER`."""

    name: str
    place: str
    allowed_signers: Path | None = None
    """File of allowed signers, one of whom must have signed the model; None: no signature is required."""
    is_in_fleet: bool = False
    """Whether other servers answer by it too: all of them change to a new champion at the same moment, and serve the
    precision that the release chose."""

    @classmethod
    def parse(cls, text: str) -> "ModelSource":
        named = _NAMED.fullmatch(text)
        if named and not Path(text).exists():
            return cls(named["name"], named["place"])
        if text.startswith(REGISTRY_SCHEME):
            return cls(cls("", text).registered_name, text)
        return cls(Path(text).resolve().name, text)

    @property
    def is_champion(self) -> bool:
        return self.place.startswith(REGISTRY_SCHEME) and self.place.endswith(f"@{registry.CHAMPION}")

    @property
    def registered_name(self) -> str:
        """Name of the registered model of a `models:/…` URI."""
        return re.split("[@/]", self.place.removeprefix(REGISTRY_SCHEME))[0]

    @property
    def is_alias(self) -> bool:
        """Whether the source is an alias of the registry, which may move to another version."""
        return self.place.startswith(REGISTRY_SCHEME) and "@" in self.place

    @property
    def is_missing(self) -> bool:
        """Whether the source is a folder that does not exist."""
        return not self.place.startswith(REGISTRY_SCHEME) and not Path(self.place).exists()


@dataclass(frozen=True, slots=True)
class FetchedModel:
    folder: Path
    version: Registered | None
    """None for a folder."""


def parse_sources(texts: Sequence[str]) -> list[ModelSource]:
    """Return the source of each text.

    Raises:
        ParamsError: two sources have the same name.
    """
    sources = [ModelSource.parse(text) for text in texts]
    names = [source.name for source in sources]
    twice = next((source for source in reversed(sources) if names.count(source.name) > 1), None)
    if twice:
        raise ParamsError(
            f"two models have the name {twice.name}",
            given=", ".join(source.place for source in sources if source.name == twice.name),
            expected="a different name for each model",
            do=f"rename one of them: {twice.name}-2={twice.place}",
        )
    return sources


def default_sources() -> list[ModelSource]:
    """Return the champions of the registry; if it has none, every exported model, encoders first.

    Raises:
        ArtifactError: there is neither a champion nor an exported model.
    """
    places = registry.champions() or [str(folder) for folder in exported()]
    if not places:
        raise _no_model("serve", "any task")
    return parse_sources(places)


def default_for(task: Task) -> ModelSource:
    """Return the only exported model of a task (dist/encoder if there are several), else the only champion.

    For a language model, an encoder with the other objective also counts: its error says what it answers.

    Raises:
        ArtifactError: no such model.
        ParamsError: several models fit.
    """
    places = [str(folder) for folder in exported(task) or _other_encoders(task)] or _champions(task)
    preferred = [place for place in places if Path(place).name == "encoder"] or places
    if not preferred:
        raise _no_model("ask", task)
    if len(preferred) > 1:
        raise ParamsError(
            f"several models have the task {task}",
            given="no --model",
            expected=f"one of: {', '.join(preferred)}",
            do=f"choose one: --model {preferred[0]}",
        )
    return ModelSource.parse(preferred[0])


def exported(task: Task | None = None) -> list[Path]:
    """Return the packages in `dist/`, of one task or of any: encoders first, then by name."""
    folders = [file.parent for file in DIST.glob(f"*/{FILES.manifest}")]
    tasks = {folder: read_manifest(folder).task for folder in folders}
    return sorted(
        (folder for folder in folders if task in (None, tasks[folder])),
        key=lambda folder: (not kind_of(tasks[folder]).is_language_model, folder.name),
    )


def _other_encoders(task: Task) -> list[Path]:
    if not kind_of(task).is_language_model:
        return []
    return [folder for folder in exported() if kind_of(read_manifest(folder).task).is_language_model]


def fetched(source: ModelSource) -> FetchedModel:
    """Return the folder of a source. A model of the registry is downloaded first if needed.

    Raises:
        ArtifactError: the registry has no such model, its files are not those that were registered, or it lacks the
            signature that the source requires.
        TransientError: the registry does not answer.
    """
    if not source.place.startswith(REGISTRY_SCHEME):
        folder = Path(source.place)
        if source.allowed_signers:
            file = signature_file(folder)
            check_signature(folder, file.read_text(encoding="utf-8") if file.is_file() else "", source.allowed_signers)
        return FetchedModel(folder, None)
    package = registry.fetch(source.place)
    if source.allowed_signers:
        check_signature(package.folder, package.version.signature, source.allowed_signers)
    return FetchedModel(package.folder, package.version)


def _champions(task: Task) -> list[str]:
    """Return the URIs of the champions of a task. The encoder is found by its name, other models by their manifest."""
    prefix = f"{REGISTRY_SCHEME}{registry.model_name('encoder')}@"
    if kind_of(task).is_language_model:
        return [uri for uri in registry.champions() if uri.startswith(prefix)]
    others = [uri for uri in registry.champions() if not uri.startswith(prefix)]
    if len(others) < 2:
        return others  # opening a single one shows whether it fits the task
    return [uri for uri in others if read_manifest(registry.resolve(uri)).task == task]


def _no_model(verb: str, task: str) -> ArtifactError:
    return ArtifactError(
        f"there is no model to {verb}",
        given=f"no {DIST}/*/{FILES.manifest} ({task}), and no champion in the registry",
        expected="an exported or released model",
        do="run `make run` (or `dvc repro`), which exports the models of `export.models` in params.yaml, or name a "
        "model: a folder, or models:/NAME@ALIAS",
    )
