"""Lineage of a registered model, read from the evidence stored with it, and checked against the stored bytes.

It is a section of the model card that only a release can write: figures on the validation text, and hashes of the
sources.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from clozeline.records import evaluation, record
from clozeline.records.finetune.task_metrics import TaskMetrics
from clozeline.records.package import package_sha256, read_manifest
from clozeline.records.package import verify as verify_package
from clozeline.registry import decisions, models, publishing, versions
from clozeline.system.errors import ArtifactError
from clozeline.system.workspace import Workspace, tracking_uri
from clozeline.versions.objects import Objects

_SNAPSHOT = "snapshot"


@dataclass(frozen=True)
class Ancestor:
    """A file or folder and its inputs."""

    path: str
    md5: str  # DVC's hash; that of a folder ends in `.dir`
    stage: str | None  # stage that made it; None for a source
    parents: tuple["Ancestor", ...]
    has_copy: bool = False  # whether a snapshot holds its bytes as they were read, so that the original may change

    def all(self) -> Iterator["Ancestor"]:
        """Yield this ancestor and everything before it, each path once."""
        seen: set[str] = set()
        waiting = [self]
        while waiting:
            ancestor = waiting.pop(0)
            if ancestor.path not in seen:
                seen.add(ancestor.path)
                yield ancestor
                waiting.extend(ancestor.parents)


@dataclass(frozen=True)
class Trace:
    """Version, package and ancestors of one registry URI."""

    uri: str
    version: models.Registered
    package: models.FetchedPackage
    commit: str | None  # git commit that it was released from; None outside a checkout
    origin: Ancestor  # the package `dist/<model>`
    forgotten: frozenset[str] = frozenset()  # paths that were removed because a text in them was forgotten

    def stored(self) -> list[Ancestor]:
        """Return the ancestors whose bytes are kept: without sources that a snapshot holds, and what was forgotten."""
        return [one for one in self.origin.all() if not one.has_copy and one.path not in self.forgotten]


def trace(uri: str, workspace: Workspace) -> Trace:
    """Return the lineage of `uri`.

    Raises:
        ParamsError, ArtifactError, TransientError: see `registry.fetch`; or the stored dvc.lock is gone.
    """
    publisher = publishing.Publisher(tracking_uri(workspace))
    version = versions.find_version(publisher.registry, uri)
    with publisher.evidence(version) as evidence:
        lock = record.Lock.read(evidence / publishing.LOCK)
    return Trace(
        uri=uri,
        version=version,
        package=models.fetch(f"models:/{version.name}/{version.version}", workspace),
        commit=publisher.registry.run_of(version).data.tags.get("mlflow.source.git.commit"),
        origin=ancestry(lock, f"dist/{version.name.removeprefix(models.MODEL_PREFIX)}"),
        forgotten=decisions.forgotten_paths(version, tracking_uri(workspace)),
    )


def ancestry(lock: record.Lock, path: str, md5: str | None = None) -> Ancestor:
    """Return `path` and its inputs, back to the sources; `md5` is its hash as the reading stage recorded it."""
    maker = lock.maker_of(path)
    if maker is None:
        return Ancestor(path=path, md5=md5 or "", stage=None, parents=())
    name, stage = maker
    own = next((out.md5 for out in stage.outs if out.path == path), None)
    parents = tuple(ancestry(lock, given.path, given.md5) for given in stage.data)
    if name == _SNAPSHOT:
        parents = tuple(replace(parent, has_copy=parent.stage is None) for parent in parents)
    return Ancestor(path=path, md5=md5 or own or "", stage=name, parents=parents)


def verify(traced: Trace, workspace: Workspace) -> int:
    """Check that every file from the registered package back to the raw text exists and is unchanged.

    A source with a snapshot may have changed since: the snapshot is checked in its place. What was removed because a
    text in it was forgotten is not looked for.

    Returns:
        Number of files and folders checked.

    Raises:
        ArtifactError: names every file that is missing or differs.
    """
    verify_package(traced.package.folder, read_manifest(traced.package.folder))
    faults = []
    if package_sha256(traced.package.folder) != traced.version.package_sha256:
        faults.append(f"{traced.package.folder}: not the package that was registered")
    ancestors = traced.stored()
    with Objects.open(workspace.root) as objects:
        if objects.md5_of(traced.package.folder) != traced.origin.md5:
            faults.append(f"{traced.package.folder}: not the output of {traced.origin.stage} ({traced.origin.md5})")
        for ancestor in ancestors:
            fault = objects.fault_of(ancestor.path, ancestor.md5, traced.commit)
            if fault:
                faults.append(f"{ancestor.path}: {fault}")
    if faults:
        raise ArtifactError(
            f"the lineage of {traced.uri} is broken: {len(faults)} of {len(ancestors)} files and folders",
            given="; ".join(faults),
            do="fetch them (`dvc pull --run-cache`); if `clozeline gc` removed them (it keeps versions with an alias),"
            " check out the commit it was released from and run `dvc repro`",
        )
    return len(ancestors)


def release_section(package: str, quality: evaluation.EncoderMetrics | TaskMetrics | None, lock: record.Lock) -> str:
    """Return the section in Markdown, without its heading, of the package `dist/<package>` that `lock` lists."""
    return "\n".join((*_figures(quality), "", *_sources(package, lock)))


def _figures(quality: evaluation.EncoderMetrics | TaskMetrics | None) -> Iterator[str]:
    if quality is None:
        yield "A published model, packaged as it is; see its own card for what it was trained on and how good it is."
        return
    if isinstance(quality, TaskMetrics):
        top = quality.headline
        yield f"{top.metric} on the test split: {top.value:.4f} (95 %: {top.low:.4f} to {top.high:.4f});"
        yield f"{top.baseline} {top.baseline_value:.4f}, {top.trivial} {top.trivial_value:.4f}."
        return
    yield f"On the whole validation split ({quality.target_tokens:,} tokens, each hidden once), with 95 % intervals:"
    yield ""
    for name in ("perplexity", "top1", "nats_per_byte"):
        value, low, high = (getattr(quality, f"{name}{end}") for end in ("", "_low", "_high"))
        yield f"- {name}: {value:.4f} ({low:.4f} to {high:.4f})"
    yield f"- perplexity of the unigram baseline: {quality.unigram_perplexity:.4f}"
    contaminated = f"{quality.contaminated_fraction:.1%} of the validation texts also occur in the training text"
    yield f"- contamination: {contaminated}"


def _sources(package: str, lock: record.Lock) -> Iterator[str]:
    yield "Source files, with their DVC hashes:"
    yield ""
    for source in ancestry(lock, f"dist/{package}").all():
        if source.stage is None:
            yield f"- `{source.path}`: md5 `{source.md5}`"
