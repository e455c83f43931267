"""contract.lock: profiles of the data that the last accepted run was trained on."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from clozeline.contract.label_profile import LabelProfile
from clozeline.contract.text_profile import TextProfile
from clozeline.errors import ArtifactError
from clozeline.storage.atomic import replacing_file
from clozeline.storage.locks import alone

FILE: Final = "contract.lock"
_NO_LABELS: Final[Mapping[str, LabelProfile]] = MappingProxyType({})


class Accepted(BaseModel):
    """Content of contract.lock. It belongs in git, beside dvc.lock."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    text: TextProfile | None = None
    labels: Mapping[str, LabelProfile] = {}
    """Profile of the labelled data by task."""

    @classmethod
    def read(cls, root: Path) -> Self:
        """Read the file of the project in `root`; return an empty record if it is missing.

        Raises:
            ArtifactError: the file is damaged.
        """
        path = root / FILE
        if not path.is_file():
            return cls()
        try:
            return cls.model_validate_json(path.read_bytes())
        except ValidationError as error:
            raise ArtifactError(
                f"{path} cannot be read: {error.errors(include_url=False)[0]['msg']}",
                do="restore it (`git checkout contract.lock`), or remove it to accept the data of the next run",
            ) from error

    @classmethod
    def add(
        cls, root: Path, *, text: TextProfile | None = None, labels: Mapping[str, LabelProfile] = _NO_LABELS
    ) -> None:
        """Add profiles to the file, or replace them. Stages that run side by side add one after the other."""
        lock = root / "work" / "contract.alone"
        lock.parent.mkdir(exist_ok=True)
        with alone(lock):
            before = cls.read(root)
            cls(text=text or before.text, labels={**before.labels, **labels}).write(root)

    def write(self, root: Path) -> None:
        with replacing_file(root / FILE) as beside:
            beside.write_text(self.model_dump_json(indent=1) + "\n", encoding="utf-8")
