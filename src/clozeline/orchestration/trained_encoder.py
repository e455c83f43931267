"""The trained encoder that a release stores with its version, for a training that continues from it."""

from collections.abc import Mapping
from typing import Final

from prefect import get_run_logger

from clozeline.artifacts.lock import Lock
from clozeline.lineage.trace import ancestry
from clozeline.params import Params
from clozeline.params.pretraining import Setting, architecture_of
from clozeline.params.recipes import laid_over
from clozeline.registry.publishing import LOCK
from clozeline.registry.trained import Trained
from clozeline.tokens.info import documents_path
from clozeline.versions.objects import Objects
from clozeline.workspace import Workspace

_ENCODER: Final = "models/encoder"
_TOKENS: Final = "data/tokens"


def trained_encoder(workspace: Workspace, params: Params) -> Trained | None:
    """Return what a later training continues from: the encoder behind the package, and the keys of its documents.

    None, with a warning, if the workspace no longer has them: the release itself needs only the package.
    """
    root, package = workspace.root, params.encoder_package or ""
    locked = Lock.read(root / LOCK)
    model = f"models/{params.export.models[package]}"
    files = {file.relative_to(root / _ENCODER).as_posix(): file for file in (root / _ENCODER).rglob("*")}
    keys = [documents_path(root / _TOKENS, split) for split in ("train", "validation")]
    wanted = {ancestor.path: ancestor.md5 for ancestor in ancestry(locked, f"dist/{package}").all()}
    with Objects.open(root) as objects:
        is_whole = all(objects.md5_of(root / path) == wanted.get(path) for path in (model, _TOKENS))
    if not (is_whole and all(path.is_file() for path in keys)):
        get_run_logger().warning(
            "%s and %s are not those that dist/%s was made from: no training can continue from this version",
            *(model, _TOKENS, package),
        )
        return None
    return Trained(
        files={path: file for path, file in sorted(files.items()) if file.is_file()}
        | {path.name: path for path in keys},
        architecture=locked_architecture(locked),
    )


def locked_architecture(lock: Lock) -> Mapping[str, Setting]:
    """Return the settings in dvc.lock that the encoder was trained with: params.yaml may have changed since.

    Empty if dvc.lock does not have them, as for an encoder that no stage trained.
    """
    maker = lock.maker_of(_ENCODER)
    params = {key: value for file in maker[1].params.values() for key, value in file.items()} if maker else {}
    pretrain = {key.removeprefix("pretrain."): value for key, value in params.items() if key.startswith("pretrain.")}
    name = params.get("pretrain.recipe")
    recipe = params.get(f"recipes.{name}", params.get("recipes", {}).get(name))
    whole = laid_over(pretrain, recipe or {})
    return architecture_of(whole["objective"], whole["model"]) if {"objective", "model"} <= whole.keys() else {}
