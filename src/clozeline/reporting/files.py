"""What a run left in its folder, read for the report."""

import csv
import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from clozeline.artifacts.lock import Lock
from clozeline.errors import ArtifactError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Result = TypeVar("Result")
RowRecord = TypeVar("RowRecord", bound="DataclassInstance")
Row = Mapping[str, str]
"""Of a CSV file, by column."""


@dataclass(frozen=True)
class RunFiles:
    """The files of a project, by their path from its root; what cannot be read is an `ArtifactError` that says so."""

    root: Path

    def lock(self) -> Lock:
        return Lock.read(self.root / "dvc.lock")

    def json(self, path: str, kind: type[Result], *, stage: str) -> Result:
        """A JSON file of records; raises ArtifactError: stage `stage` has not made it, or it is damaged."""
        adapter = TypeAdapter(kind)
        return self._read(
            path, stage, "a JSON file as that stage writes it", lambda file: adapter.validate_json(file.read_bytes())
        )

    def figures(self, path: str, *, stage: str) -> Mapping[str, Any]:
        """A metric file; raises ArtifactError as `json`."""
        return self.json(path, dict[str, Any], stage=stage)

    def csv(self, path: str, *columns: str, stage: str) -> list[Row]:
        """Its rows, none perhaps; raises ArtifactError as `json`, and if a row lacks one of `columns`."""

        def read(file: Path) -> list[Row]:
            with file.open(encoding="utf-8", newline="") as stream:
                reader = csv.DictReader(stream)
                rows: list[Row] = list(reader)
                lacking = [name for name in columns if name not in (reader.fieldnames or ())]
            if lacking or any(row[name] is None for row in rows for name in columns):
                raise ValueError(f"no column {lacking[0]}" if lacking else "a row that is too short")
            return rows

        return self._read(path, stage, f"a CSV file with {', '.join(columns) or 'a head'}", read)

    def rows(self, path: str, kind: type[RowRecord], *, stage: str) -> list[RowRecord]:
        """Its rows as records, which have the columns as fields; raises ArtifactError as `csv`, and for another type of
        value.
        """
        rows = self.csv(path, *(field.name for field in fields(kind)), stage=stage)
        try:
            return TypeAdapter(list[kind]).validate_python(rows)  # type: ignore[valid-type]
        except ValidationError as error:
            raise _unreadable(path, stage, f"a CSV file of {kind.__name__}", error) from error

    def names(self, pattern: str) -> list[str]:
        """Paths of the files that match, sorted."""
        return sorted(file.relative_to(self.root).as_posix() for file in self.root.glob(pattern) if file.is_file())

    def md5(self, path: str) -> str:
        """As DVC's of a file; raises ArtifactError if it is not there."""
        return self._read(
            path, "", "a file", lambda file: hashlib.md5(file.read_bytes(), usedforsecurity=False).hexdigest()
        )

    def _read(self, path: str, stage: str, expected: str, read: Callable[[Path], Result]) -> Result:
        try:
            return read(self.root / path)
        except FileNotFoundError as error:
            raise _missing(path, stage) from error
        except (ValueError, csv.Error) as error:
            raise _unreadable(path, stage, expected, error) from error


def _missing(path: str, stage: str) -> ArtifactError:
    return ArtifactError(
        f"{path} is not there",
        given="no such file",
        expected=f"a file that stage {stage} writes",
        do=f"run the stages: `clozeline run`, or `dvc repro {stage}`",
    )


def _unreadable(path: str, stage: str, expected: str, error: Exception) -> ArtifactError:
    fault = error.errors(include_url=False)[0] if isinstance(error, ValidationError) else None
    given = f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" if fault else str(error)
    return ArtifactError(
        f"{path} cannot be read",
        given=given[:200],
        expected=expected,
        do=f"run the stage that writes it again: `dvc repro --force --single-item {stage}`",
    )
