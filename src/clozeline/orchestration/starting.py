"""The version that a pre-training continues from: chosen once for each new text, and kept in start.lock."""

from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from prefect import get_run_logger

from clozeline.artifacts.lock import Lock
from clozeline.artifacts.start_lock import START_LOCK, StartLock, write_start_lock
from clozeline.errors import TransientError
from clozeline.params import FROM_CHAMPION, Params
from clozeline.registry import model_name
from clozeline.registry.trained import check_still_registered, fetch_trained, locked_champion
from clozeline.versions.graph import StageNode
from clozeline.versions.objects import Objects
from clozeline.workspace import Workspace

_SNAPSHOT: Final = "snapshot"
_NO_TEXT: Final = ""
"""Text of a lock that was written before its snapshot was taken; it equals the hash of none."""


def settle_start(workspace: Workspace, graph: Sequence[StageNode], params: Params) -> bool:
    """Make start.lock agree with `pretrain.start` and with the snapshot; return whether it changed.

    With `start: champion` it names the champion of the time when this snapshot was first seen, so that a second run on
    the same text finds every stage up to date. Otherwise it names no version. A snapshot that has yet to be taken is
    settled by `settle_for`, after that stage: until then the last lock stays, or one names the champion if there is
    none, or none of the same architecture.

    Raises:
        ArtifactError: start.lock is damaged; or there is no champion with trained weights to start from.
        ParamsError: the champion is another model than `params` asks for.
        TransientError: the registry does not answer.
    """
    if not any(START_LOCK in node.deps for node in graph):
        return False
    if params.pretrain.start != FROM_CHAMPION:
        return _replace(workspace, None)
    if not _is_new(graph):
        return _continue(workspace, params)
    champion = _champion(workspace, params, _NO_TEXT)
    fetch_trained(champion, workspace)
    locked = StartLock.read(workspace.root / START_LOCK)
    if locked is not None and locked.architecture == champion.architecture:
        return False
    return _replace(workspace, champion)


def require_start(workspace: Workspace, graph: Sequence[StageNode], params: Params) -> None:
    """Check and fetch the version in start.lock if a stage will read it, so that a lost one is known before any work.

    Raises:
        ArtifactError: the registry does not have that version, or its files differ from start.lock.
        ParamsError: it is another model than `params` asks for.
        TransientError: the registry does not answer, and the files are not here yet.
    """
    locked = StartLock.read(workspace.root / START_LOCK)
    is_read = any(START_LOCK in node.deps and node.is_changed for node in graph)
    if locked is not None and is_read and not _is_new(graph):
        locked.check_architecture(params.pretrain)
        with suppress(TransientError):
            check_still_registered(locked, workspace)
        fetch_trained(locked, workspace)


def settle_for(node: StageNode, workspace: Workspace, params: Params) -> None:
    """Settle start.lock for stage `node`, after the snapshot and before the stage runs; raises as `settle_start`."""
    if node.is_changed and START_LOCK in node.deps and params.pretrain.start == FROM_CHAMPION:
        _continue(workspace, params)


def _is_new(graph: Sequence[StageNode]) -> bool:
    """Return whether the stages will take a new snapshot."""
    return any(node.name == _SNAPSHOT and node.is_changed for node in graph)


def _continue(workspace: Workspace, params: Params) -> bool:
    """Lock the champion if start.lock is of another snapshot than the last one; return whether it changed."""
    locked, text = StartLock.read(workspace.root / START_LOCK), _text_hash(workspace)
    if text is None or (locked is not None and locked.text == text):
        return False
    wanted = _champion(workspace, params, text)
    get_run_logger().info("new text: pre-training continues from %s", wanted)
    return _replace(workspace, wanted)


def _champion(workspace: Workspace, params: Params, text: str) -> StartLock:
    champion = locked_champion(model_name(params.encoder_package or ""), text, workspace)
    champion.check_architecture(params.pretrain)
    return champion


def _text_hash(workspace: Workspace) -> str | None:
    """Return the hash of the last snapshot: the one decision of what counts as new text. None before the first one."""
    file = workspace.root / "dvc.lock"
    stage = Lock.read(file).stages.get(_SNAPSHOT) if file.exists() else None
    return stage.outs[0].md5 if stage and stage.outs else None


def _replace(workspace: Workspace, wanted: StartLock | None) -> bool:
    path = workspace.root / START_LOCK
    if path.exists() and StartLock.read(path) == wanted:
        return False
    with Objects.open(workspace.root) as objects:
        if path.exists():
            objects.keep(path)
        write_start_lock(path, wanted)
        objects.keep(path)  # the lineage of models trained with it needs it; each push sends what the cache has
    return True
