"""Disk space that a run needs, compared with what is free before the first stage runs."""

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from prefect import get_run_logger

from clozeline.artifacts.lock import Lock
from clozeline.errors import StorageError
from clozeline.params import Params
from clozeline.versions.graph import StageNode

_GB: Final = 1e9
_ENCODER: Final = "models/encoder"
_PRETRAIN: Final = "pretrain"
_BYTES_PER_PARAMETER: Final = 4
_CHECKPOINT_PER_WEIGHTS: Final = 3
"""Size of a checkpoint in multiples of the weights: weights and the two moments of Adam."""
_TEXT_PER_SOURCE: Final = 2
"""Outputs of a stage that never ran, in multiples of its inputs: clean text and tokens are smaller than the source."""
_LOGS_AND_RECORDS_BYTES: Final = 50_000_000


def needed_bytes(root: Path, graph: Sequence[StageNode], params: Params) -> int:
    """Return an estimate of what the changed stages write: as in the last run, or as planned if they never ran.

    Outputs count once, as DVC's cache links them where the file system can.
    """
    known = _last_sizes(root)
    changed = [node for node in graph if node.is_changed]
    if not changed:
        return 0
    encoder = known.get(_ENCODER, 0) or _planned_encoder_bytes(changed, params)
    outs = sum(known.get(out, 0) or _first_bytes(root, node, out, encoder) for node in changed for out in node.outs)
    # A new checkpoint is written before the oldest one is removed.
    checkpoints = (params.pretrain.num_checkpoints + 1) * _CHECKPOINT_PER_WEIGHTS * encoder
    trains = any(node.name == _PRETRAIN or node.name.startswith("finetune@") for node in changed)
    return outs + trains * checkpoints + _LOGS_AND_RECORDS_BYTES


def require_disk_space(root: Path, graph: Sequence[StageNode], params: Params) -> None:
    """Check that the disk has room for the run; warn if it would not if DVC had to copy the outputs into its cache.

    Raises:
        StorageError: the run would fill the disk; nothing was started.
    """
    needed, free = needed_bytes(root, graph, params), shutil.disk_usage(root).free
    if free < needed:
        raise StorageError(
            f"the disk of {root} has too little room for this run",
            given=f"{free / _GB:.2f} GB are free",
            expected=f"about {needed / _GB:.2f} GB for the outputs and checkpoints of the stages that have to run",
            do="free space on that disk (`clozeline gc` lists data that is no longer needed; delete nothing in"
            " .dvc/cache by hand, which the lineage of released models needs), or put the cache on another disk:"
            " move .dvc/cache there, then `dvc cache dir --local FOLDER`",
        )
    if free < 2 * needed:
        get_run_logger().warning(
            "%.2f GB of disk are free, and this run writes about %.2f GB: twice that where DVC's cache has to copy",
            free / _GB,
            needed / _GB,
        )


def _last_sizes(root: Path) -> Mapping[str, int]:
    lock = root / "dvc.lock"
    if not lock.is_file():
        return {}
    return {out.path: out.size or 0 for stage in Lock.read(lock).stages.values() for out in stage.outs}


def _planned_encoder_bytes(changed: Sequence[StageNode], params: Params) -> int:
    if params.pretrain.start or not any(node.name == _PRETRAIN for node in changed):
        return 0
    from clozeline.language_modelling.language_model import outline
    from clozeline.language_modelling.objectives import OBJECTIVES

    model = outline(params.pretrain.model, OBJECTIVES[params.pretrain.objective].head, params.tokenize.vocab_size)
    return _BYTES_PER_PARAMETER * sum(parameter.numel() for parameter in model.parameters())


def _first_bytes(root: Path, node: StageNode, out: str, encoder: int) -> int:
    """Return the size of an output that no run has made yet."""
    if out.startswith(("models/", "dist/")):
        return encoder * (2 if out.startswith("dist/") else 1)  # a package has an fp32 and an INT8 graph
    if out.startswith("data/"):
        return _TEXT_PER_SOURCE * sum(_size_of(root / path) for path in node.deps if not path.startswith("src/"))
    return 0


def _size_of(path: Path) -> int:
    files = path.rglob("*") if path.is_dir() else [path]
    return sum(file.stat().st_size for file in files if file.is_file())
