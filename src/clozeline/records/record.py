"""Records in JSON files, written whole or not at all; and dvc.lock: what each stage read and wrote, by hash."""

import json
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError

from clozeline.system import errors, files
from clozeline.system.content import sha256_of

CODE_FOLDER = "src/"
WRITE_AGAIN = "run the stage that writes it (`clozeline run` or `dvc repro`)"


class Record(BaseModel):
    """A record with a fixed set of fields. An unknown field means another version of the file, and is refused."""

    # NaN is written as a string, because readers would not take null for a number.
    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")

    @classmethod
    def read(cls, path: Path, *, absent: Self | None = None, do: str = WRITE_AGAIN) -> Self:
        """Read the record in the JSON file `path`.

        Args:
            absent: what to return if there is no such file; by default this is an error.
            do: what a person can do about a missing or damaged file.

        Raises:
            ArtifactError: the file is missing, or is no record of this kind.
        """
        try:
            content = path.read_bytes()
        except (FileNotFoundError, IsADirectoryError, NotADirectoryError) as error:
            if absent is not None:
                return absent
            raise errors.ArtifactError(f"there is no file {path}", do=do) from error
        return cls.of_json(content, path, do=do)

    @classmethod
    def lines(cls, path: Path, *, do: str = WRITE_AGAIN) -> list[Self]:
        """Read the records in a file of JSON lines; none if there is no such file. Raises what `read` raises."""
        if not path.is_file():
            return []
        # Iterate over the file: `splitlines` also splits at U+2028 and others, which JSON leaves inside a string.
        with path.open("rb") as lines:
            return [cls.of_json(line, f"{path}:{number}", do=do) for number, line in enumerate(lines, start=1)]

    @classmethod
    def of_json(cls, content: bytes | str, place: object, *, do: str = WRITE_AGAIN) -> Self:
        """Return the record in `content`, which was read from `place`.

        Raises:
            ArtifactError: it is no record of this kind; the error names the first wrong field.
        """
        try:
            return cls.model_validate_json(content)
        except ValidationError as error:
            fault = error.errors(include_url=False)[0]
            key = ".".join(map(str, fault["loc"])) or "the whole file"
            given, expected = repr(str(fault["input"])[:80]), fault["msg"].removeprefix("Value error, ")
            raise errors.ArtifactError(f"{place} cannot be used: {key}: {given}: {expected}", do=do) from error

    def write(self, path: Path, *, indent: int | None = 2, exclude_none: bool = False) -> None:
        """Write the record into the file `path`, whole or not at all."""
        with files.replacing_file(path) as beside:
            content = self.model_dump_json(indent=indent, exclude_none=exclude_none)
            beside.write_text(content + "\n", encoding="utf-8")


class MetricFile(Record):
    """A metric file. Programs read the declared fields by name; other figures of the stage are kept beside them."""

    model_config = ConfigDict(extra="allow")

    def write(self, path: Path, *, indent: int | None = 2, exclude_none: bool = True) -> None:
        """Write the figures; fields that are None are left out."""
        super().write(path, indent=indent, exclude_none=exclude_none)


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class LockedPath(_Record):
    """A file or a folder. The hash of a folder is that of its list of files, and ends in `.dir`."""

    path: str
    md5: str | None = None
    size: int | None = None

    @property
    def is_code(self) -> bool:
        return self.path.startswith(CODE_FOLDER)


class LockedStage(_Record):
    """A stage as of its last run."""

    cmd: str | list[str]
    deps: tuple[LockedPath, ...] = ()
    params: Mapping[str, Mapping[str, Any]] = Field(default_factory=dict)  # params by file, then by key
    outs: tuple[LockedPath, ...] = ()

    @property
    def sha256(self) -> str:
        """Hash of the whole record: equal for two runs with equal inputs, params and outputs."""
        return sha256_of(self.model_dump_json().encode())

    @property
    def data(self) -> tuple[LockedPath, ...]:
        """Inputs other than code."""
        return tuple(path for path in self.deps if not path.is_code)

    def argument(self, name: str) -> str:
        """Return the value of `name=…` in the command; "" if it has no such argument."""
        words = shlex.split(self.cmd if isinstance(self.cmd, str) else " ".join(self.cmd))
        return next((word.partition("=")[2] for word in words if word.startswith(f"{name}=")), "")

    def flat_params(self) -> dict[str, str]:
        """Return every knob by its dotted name."""
        return {key: str(value) for tree in self.params.values() for key, value in leaves(tree)}


class Lock(_Record):
    """Content of dvc.lock."""

    stages: Mapping[str, LockedStage]

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a dvc.lock.

        Raises:
            ArtifactError: the file is missing or damaged.
        """
        try:
            return cls.model_validate(YAML(typ="safe").load(path.read_text(encoding="utf-8")))
        except (FileNotFoundError, NotADirectoryError) as error:
            fault = "no such file"
            cause: Exception = error
        except (MarkedYAMLError, ValidationError) as error:
            fault = " ".join(str(error).split())[:200]
            cause = error
        raise errors.ArtifactError(
            f"{path} cannot be read: {fault}", do="run the stages first (`clozeline run` or `dvc repro`)"
        ) from cause

    def maker_of(self, path: str) -> tuple[str, LockedStage] | None:
        """Return the stage that writes `path` or a folder that holds it; None if no stage does."""
        for name, stage in self.stages.items():
            if any(path == out.path or path.startswith(f"{out.path}/") for out in stage.outs):
                return name, stage
        return None


def leaves(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every value that is not a mapping, with its dotted name."""
    for key, value in tree.items():
        if isinstance(value, Mapping) and value:
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def numbers_of(metric_file: Path) -> dict[str, float]:
    """Return the numbers of a JSON metric file by their dotted names; empty if there is no such file."""
    if not metric_file.is_file():
        return {}
    tree = json.loads(metric_file.read_text(encoding="utf-8"))
    return {
        key: float(value)
        for key, value in leaves(tree)
        if isinstance(value, int | float) and not isinstance(value, bool)
    }
