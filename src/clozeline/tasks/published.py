"""Folder of a published model: a local one, or a download from the hub."""

from pathlib import Path

from huggingface_hub import snapshot_download

from clozeline.encoder.checkpoints import first_line
from clozeline.errors import ArtifactError

_FILES = ["*.json", "*.safetensors", "*.txt", "*.model"]


def folder_of(name: str, revision: str | None, what: str) -> Path:
    """Return the folder `name`, or that of the hub model `name` at the commit `revision`.

    Args:
        what: how messages call the model.

    Raises:
        ArtifactError: the model is missing, or the hub did not answer.
    """
    if Path(name).is_dir():
        return Path(name)
    try:
        return Path(snapshot_download(name, revision=revision, allow_patterns=_FILES))
    except (OSError, ValueError) as error:
        raise ArtifactError(
            f"{what}, {name}, is not a folder and cannot be downloaded from the hub: {first_line(error)}",
            do=f"with a network, run `hf download {name} --local-dir FOLDER`, and name that folder",
        ) from error
