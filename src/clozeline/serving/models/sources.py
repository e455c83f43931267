"""Which models to use: folders of `dist/` and `models:/…` URIs of the registry, under the names clients call them."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from clozeline import registry
from clozeline.artifacts.manifest import FILES, Precision, Task, read_manifest
from clozeline.errors import ArtifactError, ParamsError
from clozeline.inference.model_kinds import kind_of

DIST = Path("dist")
REGISTRY_SCHEME = "models:/"
_NAMED = re.compile(r"(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)=(?P<place>.+)")


@dataclass(frozen=True, slots=True)
class ModelSource:
    """A model as it was asked for: `[NAME=]models:/…` or `[NAME=]FOLDER`."""

    name: str
    place: str

    @classmethod
    def parse(cls, text: str) -> "ModelSource":
        named = _NAMED.fullmatch(text)
        if named and not Path(text).exists():
            return cls(named["name"], named["place"])
        if text.startswith(REGISTRY_SCHEME):
            return cls(re.split("[@/]", text.removeprefix(REGISTRY_SCHEME))[0], text)
        return cls(Path(text).resolve().name, text)

    @property
    def is_alias(self) -> bool:
        """Whether another version may come to stand behind it."""
        return self.place.startswith(REGISTRY_SCHEME) and "@" in self.place


@dataclass(frozen=True, slots=True)
class FetchedModel:
    folder: Path
    version: str | None
    """Of the registry; a folder has none."""
    served: Precision | None = None
    """The graph that the registry says is to answer; None: what the manifest says."""
    served_on: str | None = None
    """The processor that the registry says so of."""


def parse_sources(texts: Sequence[str]) -> list[ModelSource]:
    """Each text as a source.

    Raises:
        ParamsError: two of them would have the same name.
    """
    sources = [ModelSource.parse(text) for text in texts]
    names = [source.name for source in sources]
    twice = next((source for source in reversed(sources) if names.count(source.name) > 1), None)
    if twice:
        raise ParamsError(
            f"two models would be called {twice.name}",
            given=", ".join(source.place for source in sources if source.name == twice.name),
            expected="a name of its own for each model",
            do=f"name one of them, as {twice.name}-2={twice.place}",
        )
    return sources


def default_sources() -> list[ModelSource]:
    """The champions of the registry if there are any, else every exported model, encoders first.

    Raises:
        ArtifactError: there is neither.
    """
    places = registry.champions() or [str(folder) for folder in exported()]
    if not places:
        raise _no_model("serve", "any task")
    return parse_sources(places)


def default_for(task: Task) -> ModelSource:
    """The one exported model of a task (dist/encoder, if there are several); else the registry's one champion.

    Raises:
        ArtifactError: there is none.
        ParamsError: there are several, and it is not clear which is meant.
    """
    places = [str(folder) for folder in exported(task)] or _champions(task)
    preferred = [place for place in places if Path(place).name == "encoder"] or places
    if not preferred:
        raise _no_model("ask", task)
    if len(preferred) > 1:
        raise ParamsError(
            f"several models are of the task {task}",
            given="no --model",
            expected=f"one of: {', '.join(preferred)}",
            do=f"choose one: --model {preferred[0]}",
        )
    return ModelSource.parse(preferred[0])


def exported(task: Task | None = None) -> list[Path]:
    """The packages in `dist/`, of one task or of any: encoders first, then by name."""
    folders = [file.parent for file in DIST.glob(f"*/{FILES.manifest}")]
    tasks = {folder: read_manifest(folder).task for folder in folders}
    return sorted(
        (folder for folder in folders if task in (None, tasks[folder])),
        key=lambda folder: (not kind_of(tasks[folder]).fills_masks, folder.name),
    )


def fetched(source: ModelSource) -> FetchedModel:
    """The folder of a source; what the registry keeps elsewhere is downloaded first.

    Raises:
        ArtifactError: the registry has no such model.
        TransientError: the registry does not answer.
    """
    if not source.place.startswith(REGISTRY_SCHEME):
        return FetchedModel(Path(source.place), None)
    package = registry.fetch(source.place)
    return FetchedModel(package.folder, package.version, package.served, package.served_on)


def _champions(task: Task) -> list[str]:
    """The live models of the registry that are of a task: the encoder has one, every other model is asked which."""
    prefix = f"{REGISTRY_SCHEME}{registry.model_name('encoder')}@"
    if kind_of(task).fills_masks:
        return [uri for uri in registry.champions() if uri.startswith(prefix)]
    others = [uri for uri in registry.champions() if not uri.startswith(prefix)]
    if len(others) < 2:
        return others  # whoever opens it sees whether it can
    return [uri for uri in others if read_manifest(registry.resolve(uri)).task == task]


def _no_model(verb: str, task: str) -> ArtifactError:
    return ArtifactError(
        f"there is no model to {verb}",
        given=f"no {DIST}/*/{FILES.manifest} ({task}), and no champion in the registry",
        expected="an exported or a released model",
        do="run `make run` (or `dvc repro`) here, which exports what `export.models` in params.yaml names, or name a "
        "model: a folder, or models:/NAME@ALIAS",
    )
