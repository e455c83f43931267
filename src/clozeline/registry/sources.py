"""Sources of models, folders of `dist/` and `models:/…` URIs of the registry, and an exported model asked from Python.

Shapes: T texts, H hidden.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from clozeline.inference import answerer, classifier, completer, language, open_model, tokenization
from clozeline.inference.package import kind_of
from clozeline.inference.package import load as open_package
from clozeline.records.package import FILES, Manifest, Precision, Task, read_manifest
from clozeline.registry import models
from clozeline.registry.models import FetchedPackage
from clozeline.registry.signature import check_signature, signature_file
from clozeline.system import errors, machine

DIST = Path("dist")
REGISTRY_SCHEME = "models:/"
_NAMED = re.compile(r"(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)=(?P<place>.+)")
Kind = TypeVar("Kind", bound=open_model.OpenModel)
Texts = str | Sequence[str]


@dataclass(frozen=True, slots=True)
class ModelSource:
    """A model as the user names it: `[NAME=]models:/…` or `[NAME=]FOLDER`."""

    name: str
    place: str
    # File of allowed signers: one of them must have signed the model. None: no signature is required.
    allowed_signers: Path | None = None
    # Whether other servers answer by it too: all of them change to a new champion at the same moment, and serve the
    # precision that the release chose.
    is_in_fleet: bool = False

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
        return self.place.startswith(REGISTRY_SCHEME) and self.place.endswith(f"@{models.CHAMPION}")

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


def parse_sources(texts: Sequence[str]) -> list[ModelSource]:
    """Return the source of each text.

    Raises:
        ParamsError: two sources have the same name.
    """
    sources = [ModelSource.parse(text) for text in texts]
    names = [source.name for source in sources]
    twice = next((source for source in reversed(sources) if names.count(source.name) > 1), None)
    if twice:
        raise errors.ParamsError(
            f"two models have the name {twice.name}:"
            f" {', '.join(one.place for one in sources if one.name == twice.name)}",
            do=f"rename one of them: {twice.name}-2={twice.place}",
        )
    return sources


def default_sources() -> list[ModelSource]:
    """Return the champions of the registry; if it has none, every exported model, encoders first.

    Raises:
        ArtifactError: there is neither a champion nor an exported model.
    """
    places = models.champions() or [str(folder) for folder in exported()]
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
    encoders = [one for one in exported() if kind_of(read_manifest(one).task).is_language_model]
    folders = exported(task) or (encoders if kind_of(task).is_language_model else [])
    places = [str(folder) for folder in folders] or _champions(task)
    preferred = [place for place in places if Path(place).name == "encoder"] or places
    if not preferred:
        raise _no_model("ask", task)
    if len(preferred) > 1:
        raise errors.ParamsError(
            f"several models have the task {task}: {', '.join(preferred)}", do=f"choose one: --model {preferred[0]}"
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


def fetched(source: ModelSource) -> FetchedPackage:
    """Return the folder of a source. A model of the registry is downloaded first if needed.

    Raises:
        ArtifactError: the registry has no such model, its files are not those that were registered, or it lacks the
            signature that the source requires.
        TransientError: the registry does not answer.
    """
    if source.place.startswith(REGISTRY_SCHEME):
        package = models.fetch(source.place)
        signature = package.version.signature if package.version else ""
    else:
        package = FetchedPackage(Path(source.place), version=None)
        file = signature_file(package.folder)
        signature = file.read_text(encoding="utf-8") if file.is_file() else ""
    if source.allowed_signers:
        check_signature(package.folder, signature, source.allowed_signers)
    return package


def _champions(task: Task) -> list[str]:
    """Return the URIs of the champions of a task. The encoder is found by its name, other models by their manifest."""
    prefix = f"{REGISTRY_SCHEME}{models.model_name('encoder')}@"
    if kind_of(task).is_language_model:
        return [uri for uri in models.champions() if uri.startswith(prefix)]
    others = [uri for uri in models.champions() if not uri.startswith(prefix)]
    if len(others) < 2:
        return others  # opening a single one shows whether it fits the task
    return [uri for uri in others if read_manifest(models.fetch(uri).folder).task == task]


def _no_model(verb: str, task: str) -> errors.ArtifactError:
    return errors.ArtifactError(
        f"there is no model to {verb}: no {DIST}/*/{FILES.manifest} ({task}), and no champion in the registry",
        do="run `make run`, which exports `export.models` in params.yaml, or name a folder or models:/NAME@ALIAS",
    )


@dataclass(frozen=True)
class Model:
    """An open package. Each method takes one text or several, and returns a list with the answer to each.

    A method that this kind of model cannot answer raises ParamsError, which names those that it can.
    """

    opened: open_model.OpenModel

    @property
    def manifest(self) -> Manifest:
        """What the package says about itself: task, labels, longest text, INT8 scheme."""
        return self.opened.manifest

    def fill(
        self, texts: Texts, *, top_k: int = 5, targets: Sequence[str] | None = None, truncate: bool = False
    ) -> list[list[list[language.Filled]]]:
        """Return the likeliest tokens for each mask of each text, best first; `[MASK]` stands for the model's own mask.

        Raises:
            TextError: a text has no mask, or is too long.
        """
        encoder = self._as(language.OpenEncoder, "fill")
        return encoder.fill(encoder.with_own_masks(_several(texts)), top_k=top_k, targets=targets, truncate=truncate)

    def complete(self, texts: Texts, *, truncate: bool = False, **decoding: Any) -> list[completer.Completion]:
        """Return the continuation of each text. `decoding`: fields of `Decoding`, such as `max_tokens` and `seed`."""
        return self._as(completer.Completer, "complete").complete(
            _several(texts), completer.Decoding(**decoding), truncate=truncate
        )

    def embed(self, texts: Texts, *, truncate: bool = False) -> npt.NDArray[np.float32]:
        """Return a vector of length 1 for each text, [T, H].

        Raises:
            TextTooLongError: a text is longer than the model reads, and `truncate` is not set.
        """
        return self._as(language.Embedder, "embed").embed(_several(texts), truncate=truncate)

    def tokens(self, texts: Texts, *, truncate: bool = False) -> list[npt.NDArray[np.float32]]:
        """Return the last hidden states of each text, [tokens, H], special tokens included.

        Raises:
            TextTooLongError: a text is longer than the model reads, and `truncate` is not set.
        """
        return self._as(language.Embedder, "tokens").tokens(_several(texts), truncate=truncate)

    def classify(
        self, texts: str | Sequence[tokenization.Given], *, top_k: int = 1, truncate: bool = False
    ) -> list[list[classifier.LabelScore]]:
        """Return the likeliest labels of each text, or pair of texts, best first.

        Raises:
            TextTooLongError: a text is longer than the model reads, and `truncate` is not set.
        """
        return self._as(classifier.Classifier, "classify").classify(_several(texts), top_k=top_k, truncate=truncate)

    def tag(self, texts: Texts) -> list[classifier.Tagged]:
        """Return the entities of each text in order; texts may have any length."""
        return self._as(classifier.Tagger, "tag").tag(_several(texts))

    def answer(
        self, pairs: tuple[str, str] | Sequence[tuple[str, str]], *, top_k: int = 1
    ) -> list[list[answerer.Answer]]:
        """Return the best answers to each pair of a question and its context, best first."""
        given = [pairs] if isinstance(pairs, tuple) and isinstance(pairs[0], str) else pairs
        return self._as(answerer.Answerer, "answer").ask(given, top_k=top_k)  # type: ignore[arg-type]  # one pair, or several

    def _as(self, kind: type[Kind], asked: str) -> Kind:
        if isinstance(self.opened, kind):
            return self.opened
        able = [f"`{name}`" for name in kind_of(self.manifest.task).methods]
        problem = f"this model, of the task {self.manifest.task}, cannot `{asked}`"
        raise errors.ParamsError(problem, do=f"ask it by {' or '.join(able)}, or load a model that can `{asked}`")


def load(place: str | PathLike[str], *, precision: Precision | None = None) -> Model:
    """Open a package: a folder that `export` returned, one of `dist/`, or `models:/NAME@ALIAS` of the registry.

    Args:
        place: the folder or the URI.
        precision: int8 or fp32; None: INT8, if the export proved it and the release did not choose fp32.

    Raises:
        ArtifactError: there is no such model, or its files are not those of its manifest.
        TransientError: the registry does not answer.
    """
    return Model(opened(ModelSource.parse(str(place)), precision, num_threads=machine.available_cores()))


def opened(source: ModelSource, precision: Precision | None, num_threads: int = 1) -> open_model.OpenModel:
    """Open the model of a source; `precision` and errors as in `load`."""
    found = fetched(source)
    chosen = precision or (found.version.served if found.version else None)
    return open_package(found.folder, precision=chosen, num_threads=num_threads)


def _several(texts: str | Sequence[Any]) -> list[Any]:
    return [texts] if isinstance(texts, str) else list(texts)
