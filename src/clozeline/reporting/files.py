"""Readers of the files of a run, for the report."""

import csv
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from clozeline.artifacts.lock import Lock
from clozeline.errors import ArtifactError
from clozeline.storage.csv_files import RowRecord
from clozeline.storage.fingerprints import md5_of

Result = TypeVar("Result")
Row = Mapping[str, str]
"""Row of a CSV file: column → text."""


@dataclass(frozen=True)
class RunFiles:
    """The files of a project, by path relative to its root. An unreadable file raises `ArtifactError`."""

    root: Path

    def lock(self) -> Lock:
        return Lock.read(self.root / "dvc.lock")

    def json(self, path: str, kind: type[Result], *, stage: str) -> Result:
        """Read a JSON file as `kind`; raises ArtifactError if stage `stage` has not written it, or it is damaged."""
        adapter = TypeAdapter(kind)
        return self._read(
            path,
            stage,
            "a JSON file in the format of that stage",
            lambda file: adapter.validate_json(file.read_bytes()),
        )

    def figures(self, path: str, *, stage: str) -> Mapping[str, Any]:
        """Read a metric file; raises ArtifactError like `json`."""
        return self.json(path, dict[str, Any], stage=stage)

    def csv(self, path: str, *columns: str, stage: str) -> list[Row]:
        """Read the rows of a CSV file; raises ArtifactError like `json`, or if a row lacks one of `columns`."""

        def read(file: Path) -> list[Row]:
            with file.open(encoding="utf-8", newline="") as stream:
                reader = csv.DictReader(stream)
                rows: list[Row] = list(reader)
                lacking = [name for name in columns if name not in (reader.fieldnames or ())]
            if lacking or any(row[name] is None for row in rows for name in columns):
                raise ValueError(f"no column {lacking[0]}" if lacking else "a row with missing values")
            return rows

        return self._read(path, stage, f"a CSV file with {', '.join(columns) or 'a header'}", read)

    def rows(self, path: str, kind: type[RowRecord], *, stage: str) -> list[RowRecord]:
        """Read the rows as records of `kind`; raises ArtifactError like `csv`, or if a value has another type.

        An empty cell stands for the default of its field.
        """
        optional = {field.name for field in fields(kind) if field.default is not MISSING}
        cells = self.csv(path, *(field.name for field in fields(kind)), stage=stage)
        rows = [{name: text for name, text in row.items() if text or name not in optional} for row in cells]
        try:
            return TypeAdapter(list[kind]).validate_python(rows)  # type: ignore[valid-type]  # a type known at run time
        except ValidationError as error:
            raise _unreadable(path, stage, f"a CSV file of {kind.__name__}", error) from error

    def names(self, pattern: str) -> list[str]:
        """Return the sorted paths of the matching files."""
        return sorted(file.relative_to(self.root).as_posix() for file in self.root.glob(pattern) if file.is_file())

    def md5(self, path: str) -> str:
        """Return the MD5 of a file, as DVC computes it; raises ArtifactError if the file is missing."""
        return self._read(path, "", "a file", md5_of)

    def _read(self, path: str, stage: str, expected: str, read: Callable[[Path], Result]) -> Result:
        try:
            return read(self.root / path)
        except FileNotFoundError as error:
            raise _missing(path, stage) from error
        except (ValueError, csv.Error) as error:
            raise _unreadable(path, stage, expected, error) from error


def _missing(path: str, stage: str) -> ArtifactError:
    return ArtifactError(
        f"{path}, which stage {stage} writes, is missing", do=f"run the stages: `clozeline run`, or `dvc repro {stage}`"
    )


def _unreadable(path: str, stage: str, expected: str, error: Exception) -> ArtifactError:
    fault = error.errors(include_url=False)[0] if isinstance(error, ValidationError) else None
    given = f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" if fault else str(error)
    return ArtifactError(
        f"{path} cannot be read as {expected}: {given[:200]}",
        do=f"run the stage that writes it again: `dvc repro --force --single-item {stage}`",
    )
