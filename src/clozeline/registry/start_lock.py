"""start.lock: the registered version that pre-training continues from."""

import hashlib
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Annotated, Self

from pydantic import AfterValidator, Field, ValidationError
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from clozeline.params.pretraining import FROM_CHAMPION, PretrainParams, Setting
from clozeline.records.record import Record
from clozeline.system.errors import ArtifactError, ParamsError
from clozeline.system.files import replacing_file

START_LOCK = "start.lock"
RENEW = f"`rm {START_LOCK}`, then `clozeline run` starts from the present champion"
_HEAD = "# Written by `clozeline run`: the registered version that pre-training continues from, or null.\n"


def _inside(path: str) -> str:
    """Refuse a path that leads out of its folder."""
    if not path or PurePosixPath(path).is_absolute() or ".." in PurePosixPath(path).parts:
        raise ValueError(f"a path inside the folder of the encoder, not {path}")
    return path


class StartLock(Record):
    """A version, and the text that it was chosen for."""

    model: Annotated[str, Field(pattern=r"^[\w.-]+$")]  # registered name
    version: Annotated[str, Field(pattern=r"^\d+$")]
    text: str  # hash of the raw text: other text means another choice
    # sha256 of each file of the trained encoder, by its path.
    files: Mapping[Annotated[str, AfterValidator(_inside)], str]
    # Settings of pre-training that its weights fit: `PretrainParams.architecture` when it was trained.
    architecture: Mapping[str, Setting]

    @classmethod
    def of_yaml(cls, path: Path) -> Self | None:
        """Read the lock; None if it names no version, or is missing.

        Raises:
            ArtifactError: the file is damaged.
        """
        try:
            tree = YAML(typ="safe").load(path.read_text(encoding="utf-8"))
            return None if tree is None else cls.model_validate(tree)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (YAMLError, ValidationError, ValueError) as error:
            raise ArtifactError(f"{path} is damaged: {' '.join(str(error).split())[:200]}", do=RENEW) from error

    def check_architecture(self, params: PretrainParams) -> None:
        """Check that `params` asks for the model that was trained; its weights fit no other.

        Raises:
            ParamsError: it asks for another one.
        """
        wanted = params.architecture
        differing = [key for key, value in self.architecture.items() if key in wanted and wanted[key] != value]
        if differing:
            raise ParamsError(
                f"training cannot continue from {self}: the params ask for another model",
                given=", ".join(
                    f"pretrain.{key}: {_shown(wanted[key])}, not {_shown(self.architecture[key])}" for key in differing
                ),
                do=f"restore these values; or train new weights, with another pretrain.start than {FROM_CHAMPION}",
            )

    def __str__(self) -> str:
        return f"{self.model} version {self.version}"

    @property
    def key(self) -> str:
        """Name for a folder that holds exactly these files."""
        told = "\n".join(f"{sha256}  {path}" for path, sha256 in sorted(self.files.items()))
        return f"{self.model}-{self.version}-{hashlib.sha256(told.encode()).hexdigest()[:12]}"


def _shown(value: Setting) -> str:
    return "null" if value is None else str(value)


def write_start_lock(path: Path, lock: StartLock | None) -> None:
    """Write `lock`, the same bytes for the same content."""
    with replacing_file(path) as beside, beside.open("w", encoding="utf-8") as file:
        file.write(_HEAD)
        if lock is None:
            file.write("null\n")
            return
        yaml = YAML(typ="safe", pure=True)
        yaml.default_flow_style, yaml.width = False, 200
        yaml.dump(lock.model_dump(), file)
