"""Check before a run of an encoder of your own: its code is tried before any stage, not after hours."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from clozeline.errors import ParamsError
from clozeline.params import Params
from clozeline.params.model import is_own
from clozeline.versions.graph import StageNode
from clozeline.workspace import Workspace

_PRETRAIN: Final = "pretrain"
_VOCAB_SIZE: Final = 256
"""Size of the vocabulary on trial; the real one is known only after `tokenize`."""


def require_own_encoder(workspace: Workspace, graph: Sequence[StageNode], params: Params) -> None:
    """Build your own encoder and try it; if models are exported, try to export it too, which takes seconds.

    Nothing is checked if `pretrain` is up to date, or starts from a trained model.

    Raises:
        ParamsError: the encoder cannot be imported, built or exported, or breaks the contract; or `pretrain` would not
            run again after an edit of its file, because dvc.yaml does not list it.
    """
    node = next((node for node in graph if node.name == _PRETRAIN and node.is_changed), None)
    if node is None or not is_own(params.pretrain.model.family) or params.pretrain.start is not None:
        return
    from clozeline.encoder.families import TokenIds
    from clozeline.encoder.own import fresh_own, sources_of
    from clozeline.pretraining.trial_export import check_export

    root = workspace.root
    if str(root) not in sys.path:
        sys.path.append(str(root))  # as for the stages, which run in the project's folder
    model = fresh_own(params.pretrain.model, TokenIds(_VOCAB_SIZE, pad_id=0, cls_id=2, sep_id=3))
    _require_deps(root, node, sources_of(model))
    if params.export.models:
        check_export(model, workspace.work / _PRETRAIN)


def _require_deps(root: Path, node: StageNode, sources: Sequence[Path]) -> None:
    for file in sources:
        if not file.is_relative_to(root):  # installed: requirements.lock has its version
            continue
        path = file.relative_to(root)
        if not any(path.is_relative_to(dep) for dep in node.deps):
            raise ParamsError(
                f"stage `{_PRETRAIN}` would not run again after an edit of your own encoder",
                given=f"{path} outside the deps of `{_PRETRAIN}` in dvc.yaml",
                expected="the file, or its folder, among the deps",
                do=f"add the line `- {path}` below `deps:` of `{_PRETRAIN}` in dvc.yaml",
            )
