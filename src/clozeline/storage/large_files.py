"""Large files of an output, kept beside DVC: the output has a pointer in place of each, with its sha256 and its size.

DVC hashes, copies and restores the pointers, and `dvc.lock` decides by them what runs, since equal content has an equal
pointer. The contents lie in one folder, which the environment names, each under its sha256.
"""

import os
import secrets
import shutil
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from clozeline.errors import ArtifactError, ParamsError, StorageError
from clozeline.storage.atomic import replacing_file, storage_faults_named
from clozeline.storage.fingerprints import sha256_of
from clozeline.storage.sweep import Removal, Store

VARIABLE: Final = "CLOZELINE_LARGE_FILES"
"""Environment variable with the folder, which every machine that reads the outputs has at the same path."""
MOST_POINTER_BYTES: Final = 256
_START: Final = b'{"large_file":'
_MB: Final = 1_000_000
_NONE_KNOWN: Final[Mapping[Path, str]] = MappingProxyType({})


class Pointer(BaseModel):
    """Content of a pointer."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    large_file: Literal[1] = 1
    """Version of the format."""
    sha256: str = Field(pattern="^[0-9a-f]{64}$")
    size_bytes: int = Field(ge=0)

    @classmethod
    def in_file(cls, path: Path) -> Self | None:
        """Return the pointer that a file is; None if it has another content, or does not exist."""
        try:
            if path.stat().st_size > MOST_POINTER_BYTES:
                return None
            return cls.of(path.read_bytes())
        except OSError:
            return None

    @classmethod
    def of(cls, content: bytes) -> Self | None:
        """Return the pointer with this content; None if it is something else."""
        if not content.startswith(_START) or len(content) > MOST_POINTER_BYTES:
            return None
        with suppress(ValidationError):
            return cls.model_validate_json(content)
        return None


@dataclass(frozen=True)
class LargeFiles:
    """The folder of the contents."""

    folder: Path

    @classmethod
    def of_environment(cls, environment: Mapping[str, str] = os.environ) -> "LargeFiles | None":
        """Return the folder that the environment names; None if it names none.

        Raises:
            ParamsError: it is no folder, or not an absolute path.
        """
        given = environment.get(VARIABLE, "").strip()
        if not given:
            return None
        folder = Path(given)
        if not folder.is_absolute() or not folder.is_dir():
            raise ParamsError(
                f"{VARIABLE} names no folder",
                given=given,
                expected="the absolute path of a folder that every machine of this project has at the same path",
                do=f"make or mount that folder, or correct {VARIABLE}",
            )
        return cls(folder)

    @classmethod
    def to_write(cls, knob: str) -> "LargeFiles":
        """Return the folder after a small write.

        Args:
            knob: the setting that asks for it, for messages.

        Raises:
            ParamsError: the environment names no folder.
            StorageError: nothing can be written there.
        """
        found = cls.of_environment()
        if found is None:
            raise ParamsError(
                f"`{knob}` needs a folder for large files",
                given=f"no {VARIABLE}",
                expected=f"{VARIABLE}, the absolute path of a folder that every machine of this project has",
                do=f"`export {VARIABLE}=/FOLDER`, or set `{knob}` to null",
            )
        check = found.folder / f".check.{secrets.token_hex(8)}"
        try:
            with storage_faults_named(check):
                check.write_bytes(b"1")
                check.unlink()
        except PermissionError as error:
            raise StorageError(
                f"{VARIABLE} names a folder that cannot be written to",
                given=str(error),
                expected="a folder in which this user may write and remove files",
                do="give the user these rights, or name another folder",
            ) from error
        return found

    def keep(self, path: Path, sha256: str | None = None) -> None:
        """Move the content of a file here, and leave a pointer.

        Args:
            sha256: that of the file, if it is known; otherwise the file is read.

        Raises:
            StorageError: the disk is full or read-only.
        """
        pointer = Pointer(sha256=sha256 or sha256_of(path), size_bytes=path.stat().st_size)
        target = self.path_of(pointer)
        if self.absence_of(pointer) is None:
            os.utime(target)  # a sweep keeps what was written lately
            path.unlink()
        else:
            target.parent.mkdir(exist_ok=True)
            with replacing_file(target) as beside:
                shutil.move(path, beside)
                beside.chmod(0o444)
        path.write_text(pointer.model_dump_json() + "\n", encoding="utf-8")

    def path_of(self, pointer: Pointer) -> Path:
        return self.folder / pointer.sha256[:2] / pointer.sha256

    def absence_of(self, pointer: Pointer) -> str | None:
        """Return what is wrong with the size of a content; None if it is there."""
        path = self.path_of(pointer)
        size = path.stat().st_size if path.is_file() else None
        if size == pointer.size_bytes:
            return None
        return f"no {path}" if size is None else f"{path} with {size:,} bytes, not {pointer.size_bytes:,}"

    def fault_of(self, pointer: Pointer) -> str | None:
        """Return what is wrong with a content, which is read; None if nothing is."""
        damaged = f"{self.path_of(pointer)} is damaged: its content does not match its name"
        return self.absence_of(pointer) or (sha256_of(self.path_of(pointer)) != pointer.sha256 and damaged) or None

    def without(self, kept: Iterable[Pointer], before: datetime) -> Store:
        """Return the removal of the contents from before `before` that no pointer of `kept` names."""
        needed = {pointer.sha256 for pointer in kept}
        return self._swept(lambda path: path.name not in needed and _written(path) < before)

    def named_by(self, pointers: Iterable[Pointer]) -> Store:
        """Return the removal of the contents that these pointers name."""
        gone = {pointer.sha256 for pointer in pointers}
        return self._swept(lambda path: path.name in gone)

    def _swept(self, is_gone: Callable[[Path], bool]) -> Store:
        found = sorted(path for path in self.folder.glob("[0-9a-f][0-9a-f]/[!.]*") if path.is_file())
        gone = [path for path in found if is_gone(path)]
        removals = (Removal(path.stat().st_size, partial(path.unlink, missing_ok=True)) for path in gone)
        return Store("large files", len(found) - len(gone), tuple(removals))


def check_large_files(above_mb: float | None, knob: str) -> None:
    """Check that the folder of large files can be written to, if there is a limit. Raises what `to_write` raises."""
    if above_mb is not None:
        LargeFiles.to_write(knob)


def keep_large(
    files: Iterable[Path], above_mb: float | None, knob: str, sha256: Mapping[Path, str] = MappingProxyType({})
) -> None:
    """Move each file of more than `above_mb` megabytes to the folder of large files, and leave a pointer.

    Args:
        above_mb: None keeps all files.
        knob: the setting of this limit, for messages.
        sha256: hashes that are known.

    Raises:
        ParamsError, StorageError: as `LargeFiles.to_write`.
    """
    if above_mb is None:
        return
    large = LargeFiles.to_write(knob)
    for file in files:
        if file.stat().st_size > above_mb * _MB:
            large.keep(file, sha256.get(file))


def located(path: Path) -> Path:
    """Return where the content of a file of an output is: at `path`, or where its pointer leads.

    Raises:
        ArtifactError: the content is missing, or has another size.
    """
    pointer = Pointer.in_file(path)
    if pointer is None:
        return path
    large = LargeFiles.of_environment()
    fault = large.absence_of(pointer) if large else f"no {VARIABLE}"
    if large is None or fault:
        raise ArtifactError(
            f"{path} is a pointer, and its content is not here",
            given=fault,
            expected=f"{pointer.size_bytes:,} bytes with sha256 {pointer.sha256[:12]}…",
            do=f"set {VARIABLE} to the folder that the writing machine has; if it was removed there, run its stage "
            "again (`dvc repro --force STAGE`)",
        )
    return large.path_of(pointer)


def _written(path: Path) -> datetime:
    return datetime.fromtimestamp(path.stat().st_mtime, UTC)
