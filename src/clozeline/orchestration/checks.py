"""Checks before a run: without them a fault in its inputs, the disk or the encoder would be noticed only after hours.

They also settle where a run starts: the version that a pre-training continues from, which is chosen once for each new
text and kept in start.lock, the trained encoder that a release stores for such a training, the commit, and the identity
of the workspace, by which runs and locks of several people and machines are told apart.
"""

import shutil
import sys
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

from prefect import get_run_logger

from clozeline.params import pretraining, project, reading, tasks
from clozeline.params.model import is_own
from clozeline.records import clean_text, record
from clozeline.records.reading.tokens import documents_path
from clozeline.registry import lineage, models, publishing, start_lock
from clozeline.registry.trained import TrainedEncoder, check_still_registered, fetch_trained, locked_champion
from clozeline.system.errors import DataError, ParamsError, StorageError, TransientError
from clozeline.system.files import files_in, replacing_file
from clozeline.system.workspace import Workspace
from clozeline.tasks.formats import require_readable
from clozeline.versions.graph import StageNode
from clozeline.versions.objects import Objects
from clozeline.versions.project import git, own_lock

_CLEAN = "data/clean"
_FINETUNE = "finetune@"
_LABELLED_BY_ITSELF = "python-docs"  # the library of each text is its label
_GB = 1e9
_ENCODER = "models/encoder"
_PRETRAIN = "pretrain"
_BYTES_PER_PARAMETER = 4
# Size of a checkpoint in multiples of the weights: weights and the two moments of Adam.
_CHECKPOINT_PER_WEIGHTS = 3
# Outputs of a stage that never ran, in multiples of its inputs: clean text and tokens are smaller than the source.
_TEXT_PER_SOURCE = 2
_LOGS_AND_RECORDS_BYTES = 50_000_000
# Size of the vocabulary on trial; the real one is known only after `tokenize`.
_VOCAB_SIZE = 256
_SNAPSHOT = "snapshot"
# Text of a lock that was written before its snapshot was taken; it equals the hash of none.
_NO_TEXT = ""
_TOKENS = "data/tokens"


def require_inputs(root: Path, graph: Sequence[StageNode], done: Collection[str]) -> None:
    """Check that every input exists, except outputs of stages that are not in `done`, the stages that are up to date.

    DVC would report a missing source without the key that names it, and missing task data only after pre-training.

    Raises:
        DataError: an input is missing; names the file and the key of params.yaml that sets its path.
    """
    to_be_made = [out for node in graph if node.name not in done for out in node.outs]
    for node in graph:
        for path in node.deps:
            if not (root / path).exists() and not any(Path(path).is_relative_to(out) for out in to_be_made):
                raise _missing(root, node, path)


def require_readable_labels(root: Path, graph: Sequence[StageNode], params: project.Params) -> None:
    """Check the files of every task that will be trained; `finetune` itself would fail only after pre-training.

    Files that a stage has yet to make and hub datasets are not checked.

    Raises:
        DataError: a file is missing or of another format, or its first record has other fields.
    """
    changed = [node for node in graph if node.is_changed]
    to_be_made = [out for node in changed for out in node.outs]
    for name in (node.name.removeprefix(_FINETUNE) for node in changed if node.name.startswith(_FINETUNE)):
        task = params.finetune[name]
        if any(Path(task.data).is_relative_to(out) for out in to_be_made):
            continue
        try:
            require_readable(task, root / task.data)
        except DataError as error:
            raise DataError(
                f"finetune.{name}: {error.problem}", given=error.given, expected=error.expected, do=error.do
            ) from error


def unlabelled_tasks(params: project.Params) -> list[str]:
    """Return the tasks whose labels would be the names of the source's files, for lack of a label field."""
    source = params.preprocess.source
    if source.kind == _LABELLED_BY_ITSELF or source.label_field is not None:
        return []
    return [
        name
        for name, task in params.finetune.items()
        if isinstance(task, tasks.LabelledParams)
        and task.label_field == clean_text.SOURCE
        and Path(task.data).is_relative_to(_CLEAN)
    ]


def warn_of_missing_labels(params: project.Params) -> None:
    """Log a warning for each of `unlabelled_tasks`."""
    for name in unlabelled_tasks(params):
        get_run_logger().warning(
            "finetune.%s learns which file a text is from: preprocess.source.label_field is null. If your text has no "
            "labels, write `finetune: {}` and leave only `encoder: encoder` under export.models",
            name,
        )


def _missing(root: Path, node: StageNode, path: str) -> DataError:
    keys = [key for key, value in record.leaves(reading.read_tree(root / "params.yaml")) if value == path]
    return DataError(
        f"{path} does not exist in {root}, and stage `{node.name}` reads it ({' and '.join(keys) or 'dvc.yaml'})",
        do=f"correct {keys[0] if keys else 'dvc.yaml'}, or restore the file (`dvc pull`, if DVC tracks it)",
    )


def needed_bytes(root: Path, graph: Sequence[StageNode], params: project.Params) -> int:
    """Return an estimate of what the changed stages write: as in the last run, or as planned if they never ran.

    Outputs count once, as DVC's cache links them where the file system can.
    """
    known = {out.path: out.size or 0 for stage in own_lock(root).stages.values() for out in stage.outs}
    changed = [node for node in graph if node.is_changed]
    if not changed:
        return 0
    encoder = known.get(_ENCODER, 0) or _planned_encoder_bytes(changed, params)
    outs = sum(known.get(out, 0) or _first_bytes(root, node, out, encoder) for node in changed for out in node.outs)
    # A new checkpoint is written before the oldest one is removed.
    checkpoints = (params.pretrain.num_checkpoints + 1) * _CHECKPOINT_PER_WEIGHTS * encoder
    trains = any(node.name == _PRETRAIN or node.name.startswith(_FINETUNE) for node in changed)
    return outs + trains * checkpoints + _LOGS_AND_RECORDS_BYTES


def require_disk_space(root: Path, graph: Sequence[StageNode], params: project.Params) -> None:
    """Check that the disk has room for the run; warn if it would not if DVC had to copy the outputs into its cache.

    Raises:
        StorageError: the run would fill the disk; nothing was started.
    """
    needed, free = needed_bytes(root, graph, params), shutil.disk_usage(root).free
    if free < needed:
        raise StorageError(
            f"{root} has too little room for this run: {free / _GB:.2f} GB free, some {needed / _GB:.2f} to write",
            do="free space there (`clozeline gc` lists what can go; remove nothing in .dvc/cache by hand), or move"
            " the cache: `dvc cache dir --local FOLDER`",
        )
    if free < 2 * needed:
        get_run_logger().warning(
            "%.2f GB of disk are free, and this run writes about %.2f GB: twice that where DVC's cache has to copy",
            free / _GB,
            needed / _GB,
        )


def _planned_encoder_bytes(changed: Sequence[StageNode], params: project.Params) -> int:
    if params.pretrain.start or not any(node.name == _PRETRAIN for node in changed):
        return 0
    from clozeline.language.models import outline
    from clozeline.language.objectives import OBJECTIVES

    model = outline(params.pretrain.model, OBJECTIVES[params.pretrain.objective].head, params.tokenize.vocab_size)
    return _BYTES_PER_PARAMETER * sum(parameter.numel() for parameter in model.parameters())


def _first_bytes(root: Path, node: StageNode, out: str, encoder: int) -> int:
    """Return the size of an output that no run has made yet."""
    if out.startswith(("models/", "dist/")):
        return encoder * (2 if out.startswith("dist/") else 1)  # a package has an fp32 and an INT8 graph
    if out.startswith("data/"):
        sources = [root / path for path in node.deps if not path.startswith("src/")]
        return _TEXT_PER_SOURCE * sum(file.stat().st_size for source in sources for file in files_in(source))
    return 0


def require_own_encoder(workspace: Workspace, graph: Sequence[StageNode], params: project.Params) -> None:
    """Build your own encoder and try it; if models are exported, try to export it too, which takes seconds.

    Nothing is checked if `pretrain` is up to date, or starts from a trained model.

    Raises:
        ParamsError: the encoder cannot be imported, built or exported, or breaks the contract; or `pretrain` would not
            run again after an edit of its file, because dvc.yaml does not list it.
    """
    node = next((node for node in graph if node.name == _PRETRAIN and node.is_changed), None)
    if node is None or not is_own(params.pretrain.model.family) or params.pretrain.start is not None:
        return
    from clozeline.encoder.families.layout import TokenIds
    from clozeline.encoder.own import fresh_own, sources_of
    from clozeline.pretraining.card import check_export

    root = workspace.root
    if str(root) not in sys.path:
        sys.path.append(str(root))  # as for the stages, which run in the project's folder
    model = fresh_own(params.pretrain.model, TokenIds(_VOCAB_SIZE, pad_id=0, cls_id=2, sep_id=3))
    own = [file.relative_to(root) for file in sources_of(model) if file.is_relative_to(root)]
    for path in own:  # of an installed one, requirements.lock has the version
        if not any(path.is_relative_to(dep) for dep in node.deps):
            raise ParamsError(
                f"stage `{_PRETRAIN}` would not run again after an edit of {path}: it is outside its deps in dvc.yaml",
                do=f"add the line `- {path}` below `deps:` of `{_PRETRAIN}` in dvc.yaml",
            )
    if params.export.models:
        check_export(model, workspace.work / _PRETRAIN)


def settle_start(workspace: Workspace, graph: Sequence[StageNode], params: project.Params) -> bool:
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
    if not any(start_lock.START_LOCK in node.deps for node in graph):
        return False
    if params.pretrain.start != pretraining.FROM_CHAMPION:
        return _replace(workspace, None)
    if not _is_new(graph):
        return _continue(workspace, params)
    champion = _champion(workspace, params, _NO_TEXT)
    fetch_trained(champion, workspace)
    locked = start_lock.StartLock.of_yaml(workspace.root / start_lock.START_LOCK)
    if locked is not None and locked.architecture == champion.architecture:
        return False
    return _replace(workspace, champion)


def require_start(workspace: Workspace, graph: Sequence[StageNode], params: project.Params) -> None:
    """Check and fetch the version in start.lock if a stage will read it, so that a lost one is known before any work.

    Raises:
        ArtifactError: the registry does not have that version, or its files differ from start.lock.
        ParamsError: it is another model than `params` asks for.
        TransientError: the registry does not answer, and the files are not here yet.
    """
    locked = start_lock.StartLock.of_yaml(workspace.root / start_lock.START_LOCK)
    is_read = any(start_lock.START_LOCK in node.deps and node.is_changed for node in graph)
    if locked is not None and is_read and not _is_new(graph):
        locked.check_architecture(params.pretrain)
        with suppress(TransientError):
            check_still_registered(locked, workspace)
        fetch_trained(locked, workspace)


def settle_for(node: StageNode, workspace: Workspace, params: project.Params) -> None:
    """Settle start.lock for stage `node`, after the snapshot and before the stage runs; raises as `settle_start`."""
    if node.is_changed and start_lock.START_LOCK in node.deps and params.pretrain.start == pretraining.FROM_CHAMPION:
        _continue(workspace, params)


def _is_new(graph: Sequence[StageNode]) -> bool:
    """Return whether the stages will take a new snapshot."""
    return any(node.name == _SNAPSHOT and node.is_changed for node in graph)


def _continue(workspace: Workspace, params: project.Params) -> bool:
    """Lock the champion if start.lock is of another snapshot than the last one; return whether it changed."""
    locked, text = start_lock.StartLock.of_yaml(workspace.root / start_lock.START_LOCK), _text_hash(workspace)
    if text is None or (locked is not None and locked.text == text):
        return False
    wanted = _champion(workspace, params, text)
    get_run_logger().info("new text: pre-training continues from %s", wanted)
    return _replace(workspace, wanted)


def _champion(workspace: Workspace, params: project.Params, text: str) -> start_lock.StartLock:
    champion = locked_champion(models.model_name(params.encoder_package or ""), text, workspace)
    champion.check_architecture(params.pretrain)
    return champion


def _text_hash(workspace: Workspace) -> str | None:
    """Return the hash of the last snapshot: the one decision of what counts as new text. None before the first one."""
    stage = own_lock(workspace.root).stages.get(_SNAPSHOT)
    return stage.outs[0].md5 if stage and stage.outs else None


def _replace(workspace: Workspace, wanted: start_lock.StartLock | None) -> bool:
    path = workspace.root / start_lock.START_LOCK
    if path.exists() and start_lock.StartLock.of_yaml(path) == wanted:
        return False
    with Objects.open(workspace.root) as objects:
        if path.exists():
            objects.keep(path)
        start_lock.write_start_lock(path, wanted)
        objects.keep(path)  # the lineage of models trained with it needs it; each push sends what the cache has
    return True


def trained_encoder(workspace: Workspace, params: project.Params) -> TrainedEncoder | None:
    """Return what a later training continues from: the encoder behind the package, and the keys of its documents.

    None, with a warning, if the workspace no longer has them: the release itself needs only the package.
    """
    root, package = workspace.root, params.encoder_package or ""
    locked = record.Lock.read(root / publishing.LOCK)
    model = f"models/{params.export.models[package]}"
    files = {file.relative_to(root / _ENCODER).as_posix(): file for file in (root / _ENCODER).rglob("*")}
    keys = [documents_path(root / _TOKENS, split) for split in ("train", "validation")]
    wanted = {ancestor.path: ancestor.md5 for ancestor in lineage.ancestry(locked, f"dist/{package}").all()}
    with Objects.open(root) as objects:
        is_whole = all(objects.md5_of(root / path) == wanted.get(path) for path in (model, _TOKENS))
    if not (is_whole and all(path.is_file() for path in keys)):
        get_run_logger().warning(
            "%s and %s are not those that dist/%s was made from: no training can continue from this version",
            *(model, _TOKENS, package),
        )
        return None
    return TrainedEncoder(
        files={path: file for path, file in sorted(files.items()) if file.is_file()}
        | {path.name: path for path in keys},
        architecture=locked_architecture(locked),
    )


def locked_architecture(lock: record.Lock) -> Mapping[str, pretraining.Setting]:
    """Return the settings in dvc.lock that the encoder was trained with: params.yaml may have changed since.

    Empty if dvc.lock does not have them, as for an encoder that no stage trained.
    """
    maker = lock.maker_of(_ENCODER)
    settings = {key: value for file in maker[1].params.values() for key, value in file.items()} if maker else {}
    if not {"pretrain.objective", "pretrain.model"} <= settings.keys():
        return {}
    return pretraining.architecture_of(settings["pretrain.objective"], settings["pretrain.model"])


def git_tags(root: Path) -> dict[str, str]:
    """Return tags for the commit and whether tracked files differ from it; {} outside a git checkout."""
    commit = git(root, "rev-parse", "HEAD")
    if commit is None:
        return {}
    changed = git(root, "status", "--porcelain", "--untracked-files=no")
    return {"mlflow.source.git.commit": commit.decode().strip(), "git.is_dirty": str(bool(changed)).lower()}


class _Identity(record.Record):
    name: str
    root: str  # folder that the name was last used in
    # Inode of the file itself: a rename of the folder keeps it, a copy to any machine or path gets another one.
    inode: int


def identity_of(workspace: Workspace) -> str:
    """Return the identity of the workspace; make one on first use. The caller holds the run lock.

    A renamed folder keeps its identity. A copy gets a new one, also on another machine, whose copy of the path says
    nothing about the original: two workspaces with one identity would close and adopt each other's running runs.
    """
    root = str(workspace.root.resolve())
    file = workspace.work / "identity.json"
    known = _Identity.model_validate_json(file.read_bytes()) if file.is_file() else None
    is_ours = known is not None and known.inode == file.stat().st_ino
    # The inode alone does not show a copy of hard links.
    name = known.name if known and is_ours and (known.root == root or not Path(known.root).exists()) else uuid4().hex
    if known is None or known.name != name or known.root != root:
        with replacing_file(file) as written:
            written.touch()
            own = _Identity(name=name, root=root, inode=written.stat().st_ino)
            written.write_text(own.model_dump_json(), encoding="utf-8")
    return name
