"""What every record of a file has in common."""

from pathlib import Path
from typing import Self

from pydantic import BaseModel, ConfigDict, ValidationError

from clozeline.errors import ArtifactError
from clozeline.storage.atomic import replacing_file


class Record(BaseModel):
    """A record that knows each of its fields: a file with another one is of another version."""

    # A figure that is NaN is kept as one: as null, no reader of the file would take it for a number.
    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")


class MetricFile(BaseModel):
    """A metric file: its fields are what programs read by name; other figures of the stage are kept beside them."""

    model_config = ConfigDict(frozen=True, extra="allow", ser_json_inf_nan="strings")

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a metric file.

        Raises:
            ArtifactError: it is not there, or lacks a figure.
        """
        try:
            return cls.model_validate_json(path.read_bytes())
        except FileNotFoundError as error:
            raise ArtifactError(
                f"there is no metric file {path}",
                given="no such file",
                expected="a file that a stage of dvc.yaml writes",
                do="run the stages first (`clozeline run` or `dvc repro`)",
            ) from error
        except ValidationError as error:
            fault = error.errors(include_url=False)[0]
            raise ArtifactError(
                f"{path} cannot be used",
                given=f"{'.'.join(map(str, fault['loc']))}: {str(fault['input'])[:80]}",
                expected=fault["msg"],
                do="run the stage that writes it again (`dvc repro`)",
            ) from error

    def write(self, path: Path) -> None:
        """What is None is left out: there is no such figure."""
        with replacing_file(path) as file:
            file.write_text(self.model_dump_json(indent=2, exclude_none=True) + "\n", encoding="utf-8")
