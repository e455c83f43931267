"""Opens a source, a served model: fetches and checks it, chooses a precision, loads the model and warms it up.

The precision is the faster one on this processor if INT8 passed its checks, else fp32.
"""

import logging
from dataclasses import dataclass
from pathlib import Path
from string import punctuation
from typing import Generic, TypeVar
from urllib.parse import quote

from clozeline.inference import open_model, package
from clozeline.inference.latency import as_fast, compare
from clozeline.records.package import GRAPHS, Manifest, Precision, data_file, read_manifest
from clozeline.registry.models import FetchedPackage
from clozeline.registry.sources import ModelSource, fetched
from clozeline.system.errors import ArtifactError, TransientError
from clozeline.system.machine import free_memory_bytes, give_back_freed, processor

# Header with the version that answered; in a request, the version that has to answer.
VERSION = "x-model-version"
Opened = TypeVar("Opened", bound=open_model.OpenModel, covariant=True)
_TEXTS = 4
_REPEATS = 15
# Time to measure one text, and again a few texts. Even a slow model runs once after a warm-up.
_SECONDS = 0.15
# INT8 counts as slower only if all of these measurements agree. On a busy machine, such as a server that loads a new
# version, a single one is sometimes wrong: in 4 of 40 and 8 of 40 trials (6 layers of 384, three busy threads on two
# cores).
_MEASUREMENTS = 3
_PASSED = "it passed its checks"
_LOG = logging.getLogger(__name__)
_COPIES = 1.75
_BESIDE_BYTES = 24 * 2**20


@dataclass(frozen=True, slots=True)
class Identity:
    """Identity of one loaded graph."""

    name: str  # name that clients use
    source: str  # registry URI or folder from which the model was loaded
    version: str
    sha256: str  # hash of the graph file
    precision: Precision
    precision_reason: str = ""  # why this precision was chosen

    @property
    def headers(self) -> dict[str, str]:
        # Percent-encoded: a folder name may hold characters that no header can carry.
        name = quote(self.name, safe=punctuation.replace("%", ""))
        return {"x-model": name, VERSION: self.version, "x-model-sha256": self.sha256}


@dataclass(frozen=True, slots=True)
class ServedModel(Generic[Opened]):
    identity: Identity
    model: Opened


LoadedModel = ServedModel[open_model.OpenModel]


@dataclass(frozen=True, slots=True)
class PrecisionChoice:
    """A precision and the reason for it."""

    precision: Precision
    reason: str
    is_settled: bool = True  # False: INT8 passed its checks, but only a measurement can tell whether it is faster here


def choice(
    found: FetchedPackage, manifest: Manifest, asked: Precision | None, *, is_in_fleet: bool = False
) -> PrecisionChoice:
    """Return the requested precision; else fp32 if INT8 failed its checks; else what the release chose, if it ran on
    this processor; else INT8, unsettled. In a fleet, what the release chose on any processor: INT8 and fp32 give
    different vectors.
    """
    if asked:
        return PrecisionChoice(asked, "it was requested")
    if manifest.served == "fp32":
        return PrecisionChoice("fp32", "no INT8 scheme passed its checks")
    released = found.version
    if is_in_fleet:
        served = released.served if released and released.served else manifest.served
        return PrecisionChoice(served, "the release chose it for the whole fleet")
    if released is None or released.served is None or released.served_on != processor():
        return PrecisionChoice("int8", _PASSED, is_settled=False)
    reason = f"{as_fast(released.int8_speedup)}, measured by the release on this kind of processor"
    return PrecisionChoice(released.served, reason if released.served == "fp32" else f"{_PASSED}; {reason}")


def timed(fp32: open_model.OpenModel, int8: open_model.OpenModel) -> PrecisionChoice:
    """Time both graphs in turns for a moment and choose the faster one; a measurement in favour of fp32 is repeated."""
    models: dict[Precision, open_model.OpenModel] = {"fp32": fp32, "int8": int8}
    for _ in range(_MEASUREMENTS):
        measured = compare(models, batch_texts=_TEXTS, repeats=_REPEATS, seconds=_SECONDS, figure=min)
        if (measured.int8_speedup or 0.0) >= 1:
            return PrecisionChoice("int8", f"{_PASSED}; measured here: {measured}")
    return PrecisionChoice("fp32", f"measured here: {measured}")


def open_source(source: ModelSource, precision: Precision | None) -> LoadedModel:
    """Fetch, check and load a model, and warm it up, so that its first client does not wait.

    Without a `precision`, the faster graph answers, but INT8 only if it passed its checks; fp32 is logged as a warning.
    A release has timed both graphs on its processor. On other processors, and for folders, both are timed here for a
    moment, if both exist and fit into memory.

    Raises:
        ArtifactError: the model is missing, or its files differ from the manifest.
        TransientError: the registry does not answer, or the weights do not fit into the free memory.
    """
    found = fetched(source)
    give_back_freed()  # return the memory of replaced models first; this one may need it
    chosen = choice(found, read_manifest(found.folder), precision, is_in_fleet=source.is_in_fleet)
    _check_room(found.folder, chosen.precision)
    model = package.load(found.folder, precision=chosen.precision)
    if not chosen.is_settled:
        model, chosen = _faster(found.folder, model)
    if precision is None:
        level = logging.WARNING if chosen.precision == "fp32" else logging.INFO
        _LOG.log(level, "%s: serving %s, because %s", source.name, chosen.precision, chosen.reason)
    sha256 = model.manifest.files[GRAPHS[chosen.precision]].sha256
    _warm_up(model)
    give_back_freed()
    version = found.version.version if found.version else sha256[:12]
    identity = Identity(source.name, source.place, version, sha256, chosen.precision, chosen.reason)
    return ServedModel(identity, model)


def _faster(folder: Path, int8: open_model.OpenModel) -> tuple[open_model.OpenModel, PrecisionChoice]:
    """Return the faster graph on this processor; INT8 if fp32 is missing or does not fit into memory."""
    try:
        _check_room(folder, "fp32")
        fp32 = package.load(folder, precision="fp32")
    except (ArtifactError, TransientError) as error:
        reason = f"{_PASSED}; its speed was not compared with that of fp32: {error.problem}"
        return int8, PrecisionChoice("int8", reason)
    chosen = timed(fp32, int8)
    return {"fp32": fp32, "int8": int8}[chosen.precision], chosen


def room_bytes(weights_bytes: int) -> int:
    """Return the peak memory, in bytes, of loading a graph with weights of this size.

    The file is read whole, and ONNX Runtime packs a second copy of each matrix before it frees the first. Vocabulary
    and first run come on top. Measured with ONNX Runtime 1.31 on x86-64, as growth to the peak of resident memory:
    165 MiB for 86 MiB of float32 (6 layers of 384), 62 MiB for 22 MiB of INT8, 449 MiB for 300 MiB of matrices alone.
    In a control group the first was killed with 151 MiB left and loaded with 156, the second with 46 and 56. After
    `give_back_freed` 100 to 114 MiB of the first stay, and 33 to 50 MiB of the second.
    """
    return int(_COPIES * weights_bytes) + _BESIDE_BYTES


def _check_room(folder: Path, precision: Precision | None) -> None:
    """Raise TransientError if the model does not fit into memory: loading it could kill the process and all models."""
    manifest = read_manifest(folder)
    graph = GRAPHS[precision or manifest.served]
    weights_bytes = sum(manifest.files[name].size_bytes for name in (graph, data_file(graph)) if name in manifest.files)
    free_bytes = free_memory_bytes()
    if free_bytes is not None and room_bytes(weights_bytes) > free_bytes:
        raise TransientError(
            f"there is not enough memory to load {folder}",
            given=f"{free_bytes / 2**20:,.0f} MiB free for this process",
            expected=f"{room_bytes(weights_bytes) / 2**20:,.0f} MiB, the peak while {weights_bytes / 2**20:,.0f} MiB "
            "of weights load",
            do="give the container more memory, serve fewer models, or serve --precision int8",
        )


def _warm_up(model: open_model.OpenModel) -> None:
    mask_token = model.manifest.special_tokens.mask_token
    for text in ("warm", mask_token or "up"):
        model.answers(model.usual([text]))
