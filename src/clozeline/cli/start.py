"""The encoder that start.lock names, for a stage that DVC runs without the flow."""

from pathlib import Path

from clozeline.artifacts.start_lock import START_LOCK, StartLock
from clozeline.errors import ArtifactError
from clozeline.params import FROM_CHAMPION, Params, PretrainParams
from clozeline.workspace import Workspace


def start_folder(params: Params, *, fetches: bool) -> Path | None:
    """Return the folder of the encoder in start.lock, relative to the current one; None without `start: champion`.

    Every stage checks start.lock, so that `dvc repro` stops at the first one. `fetches`: whether it needs the files.

    Raises:
        ArtifactError: start.lock disagrees with `pretrain.start`; or its version is gone, or has other files.
        ParamsError: the params ask for another model than that version.
        TransientError: the registry does not answer.
    """
    locked = StartLock.read(Path(START_LOCK))
    if (locked is not None) != (params.pretrain.start == FROM_CHAMPION):
        raise ArtifactError(
            f"{START_LOCK} and `pretrain.start` disagree",
            given=f"{START_LOCK}: {locked or 'no version'}; `pretrain.start`: {params.pretrain.start or 'null'}",
            expected=f"a version for `start: {FROM_CHAMPION}`, and none for any other",
            do=f"run `clozeline run --no-release`, which writes {START_LOCK}; from then on `dvc repro` uses it",
        )
    if locked is None:
        return None
    locked.check_architecture(params.pretrain)
    if not fetches:
        return None
    from clozeline.registry.trained import fetch_trained

    return fetch_trained(locked, Workspace(Path()))


def with_start_folder(pretrain: PretrainParams, params: Params) -> PretrainParams:
    """Return `pretrain` with the folder of the champion as its start: the one in start.lock, else the present one.

    Raises:
        ArtifactError: there is no champion, or its files are gone.
        ParamsError: `pretrain` asks for another model than it.
        TransientError: the registry does not answer.
    """
    if pretrain.start != FROM_CHAMPION:
        return pretrain
    from clozeline.registry import model_name
    from clozeline.registry.trained import fetch_trained, locked_champion

    workspace = Workspace(Path())
    locked = StartLock.read(Path(START_LOCK)) or locked_champion(
        model_name(params.encoder_package or ""), "", workspace
    )
    locked.check_architecture(pretrain)
    return pretrain.model_copy(update={"start": str(fetch_trained(locked, workspace))})
