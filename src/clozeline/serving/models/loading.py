"""From a source to a model that has answered once."""

import logging
from pathlib import Path

from clozeline.artifacts.manifest import GRAPHS, Precision, data_file, read_manifest
from clozeline.errors import ArtifactError, TransientError
from clozeline.inference.open_model import OpenModel
from clozeline.inference.package import load
from clozeline.machine.free_memory import free_memory_bytes
from clozeline.machine.heap import give_back_freed
from clozeline.serving.models.precision import Choice, choice, timed, untimed
from clozeline.serving.models.sources import ModelSource, fetched
from clozeline.serving.observe.identity import Identity
from clozeline.serving.scheduling.work import LoadedModel, ServedModel

_LOG = logging.getLogger(__name__)
_COPIES = 1.75
_BESIDE_BYTES = 24 * 2**20


def open_source(source: ModelSource, precision: Precision | None) -> LoadedModel:
    """Fetch, check and load a model, and run it once, so that its first client does not wait for it.

    Without a `precision`, the graph answers that was found fit: fp32, and it is said, where INT8 was refused by its
    checks or is slower on this processor. A release has timed both on its own; elsewhere, and of a folder, which no
    release says anything of, they are timed here for a moment, if both are there and there is memory for both.

    Raises:
        ArtifactError: it is not there, or its bytes are not those that were exported.
        TransientError: the registry does not answer, or its weights do not fit into the memory that is left.
    """
    found = fetched(source)
    give_back_freed()  # a model that was let go of since, whose room this one can have
    chosen = choice(found, read_manifest(found.folder), precision)
    _check_room(found.folder, chosen.precision)
    model = load(found.folder, precision=chosen.precision)
    if not chosen.is_settled:
        model, chosen = _faster(found.folder, model)
    if precision is None:
        level = logging.WARNING if chosen.precision == "fp32" else logging.INFO
        _LOG.log(level, "%s: %s answers, because %s", source.name, chosen.precision, chosen.reason)
    sha256 = model.manifest.files[GRAPHS[chosen.precision]].sha256
    _warm_up(model)
    give_back_freed()
    identity = Identity(
        source.name, source.place, found.version or sha256[:12], sha256, chosen.precision, chosen.reason
    )
    return ServedModel(identity, model)


def _faster(folder: Path, int8: OpenModel) -> tuple[OpenModel, Choice]:
    """The graph that answers sooner on this processor; fp32 need not be there, nor memory for both."""
    try:
        _check_room(folder, "fp32")
        fp32 = load(folder, precision="fp32")
    except (ArtifactError, TransientError) as error:
        return int8, untimed(error.problem)
    chosen = timed(fp32, int8)
    return {"fp32": fp32, "int8": int8}[chosen.precision], chosen


def room_bytes(weights_bytes: int) -> int:
    """Memory that loading takes at its highest, of a graph whose weights are so large.

    The file is read whole, and ONNX Runtime packs a second copy of each matrix before it lets go of the first; beside
    that are the vocabulary and the first run. Measured with ONNX Runtime 1.31 on x86-64, as the highest resident memory
    over that before: 165 MiB for 86 MiB of float32 (6 layers of 384), 62 for 22 of INT8, 449 for 300 of nothing but
    matrices. In a control group the first was killed with 151 MiB left and loaded with 156, the second with 46 and 56.
    Once `give_back_freed` was called 100 to 114 MiB of the first stay, and 33 to 50 of the second.
    """
    return int(_COPIES * weights_bytes) + _BESIDE_BYTES


def _check_room(folder: Path, precision: Precision | None) -> None:
    """Better no new model than one that ends the process, and with it the model that answers."""
    manifest = read_manifest(folder)
    graph = GRAPHS[precision or manifest.served]
    weights_bytes = sum(manifest.files[name].size_bytes for name in (graph, data_file(graph)) if name in manifest.files)
    free_bytes = free_memory_bytes()
    if free_bytes is not None and room_bytes(weights_bytes) > free_bytes:
        raise TransientError(
            f"there is no memory for {folder}",
            given=f"{free_bytes / 2**20:,.0f} MiB that this process may still take",
            expected=f"{room_bytes(weights_bytes) / 2**20:,.0f} MiB, which loading {weights_bytes / 2**20:,.0f} MiB "
            "of weights may take for a moment",
            do="give the container more memory, serve fewer models, or serve --precision int8",
        )


def _warm_up(model: OpenModel) -> None:
    mask_token = model.manifest.special_tokens.mask_token
    for text in ("warm", mask_token or "up"):
        model.answers(model.usual([text]))
