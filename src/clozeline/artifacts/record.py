"""Base classes of the records that rooms exchange as files."""

from pathlib import Path
from typing import Self

from pydantic import BaseModel, ConfigDict, ValidationError

from clozeline.errors import ArtifactError
from clozeline.storage.atomic import replacing_file


class Record(BaseModel):
    """A record with a fixed set of fields. An unknown field means another version of the file, and is refused."""

    # NaN is written as a string, because readers would not take null for a number.
    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")


class MetricFile(BaseModel):
    """A metric file. Programs read the declared fields by name; other figures of the stage are kept beside them."""

    model_config = ConfigDict(frozen=True, extra="allow", ser_json_inf_nan="strings")

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a metric file.

        Raises:
            ArtifactError: the file is missing, or lacks a figure.
        """
        try:
            return cls.model_validate_json(path.read_bytes())
        except FileNotFoundError as error:
            raise ArtifactError(
                f"there is no metric file {path}", do="run the stages first (`clozeline run` or `dvc repro`)"
            ) from error
        except ValidationError as error:
            raise unusable(path, error, do="run the stage again that writes it (`dvc repro`)") from error

    def write(self, path: Path) -> None:
        """Write the figures; fields that are None are left out."""
        with replacing_file(path) as file:
            file.write_text(self.model_dump_json(indent=2, exclude_none=True) + "\n", encoding="utf-8")


def unusable(path: Path, error: ValidationError, *, do: str) -> ArtifactError:
    """Return the error for a file that is not a record of its kind; it names the first wrong field."""
    fault = error.errors(include_url=False)[0]
    key = ".".join(map(str, fault["loc"])) or "the whole file"
    return ArtifactError(
        f"{path} cannot be used: {key}: {str(fault['input'])[:80]!r}: {fault['msg'].removeprefix('Value error, ')}",
        do=do,
    )
