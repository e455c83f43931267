"""Files of an output as its stage last made them, also while DVC runs that stage again and has removed them."""

import logging
from pathlib import Path

from clozeline.records.record import Lock

_LOG = logging.getLogger(__name__)
_LOCK = "dvc.lock"


def last_output(root: Path, folder: Path) -> dict[str, Path]:
    """Return name → file of the output `folder`; from DVC's cache by the hash in dvc.lock if the folder is gone.

    Empty if the stage never ran here, or if the cache does not hold the output (a clone without `dvc pull`).

    Raises:
        ArtifactError: dvc.lock is damaged.
    """
    if folder.is_dir():
        return {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
    if not (root / _LOCK).is_file():
        return {}
    locked = [out for stage in Lock.read(root / _LOCK).stages.values() for out in stage.outs]
    md5 = next((out.md5 for out in locked if out.path == folder.as_posix()), None)
    if md5 is None:
        return {}
    from clozeline.versions.objects import Objects  # imports dvc, which a training from Python does not need

    with Objects.open(root) as objects:
        files = objects.files_of(md5)
    if files is None:
        _LOG.warning(
            "%s of the last run is not in DVC's cache: this run starts anew (`dvc pull %s` before it would bring it)",
            *(folder, folder),
        )
        return {}
    return files
