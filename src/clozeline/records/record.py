"""Records in JSON files, written whole or not at all; and dvc.lock: what each stage read and wrote, by hash.

The evidence of decisions is records too: figures with their limits, and those of a candidate beside the champion's.
"""

import json
import math
import operator
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import field
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, computed_field
from pydantic.dataclasses import dataclass
from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError

from clozeline.system import errors
from clozeline.system.files import replacing_file, sha256_of

CODE_FOLDER = "src/"
WRITE_AGAIN = "run the stage that writes it (`clozeline run` or `dvc repro`)"
MustBe = Literal["at least", "at most", "above", "below"]
_COMPARISONS: Mapping[MustBe, Callable[[float, float], bool]] = {
    "at least": operator.ge,
    "at most": operator.le,
    "above": operator.gt,
    "below": operator.lt,
}

# Figure of encoders. Lower is better; of every other figure, higher is better.
NATS_PER_BYTE = "nats_per_byte"


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
        with replacing_file(path) as beside:
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


@dataclass(frozen=True, config=ConfigDict(ser_json_inf_nan="strings"))
class Limit:
    """One figure and its limit, as the manifest of a package and the decision about a release keep them."""

    name: str
    given: float
    must_be: MustBe
    limit: float
    # What a reader needs beside the limit, such as the figure before; it is shown, but not written.
    note: Annotated[str, Field(exclude=True)] = field(default="", kw_only=True)

    @classmethod
    def at_least(cls, name: str, given: float, limit: float, **more: Any) -> Self:
        return cls(name, given, "at least", limit, **more)

    @classmethod
    def at_most(cls, name: str, given: float, limit: float, **more: Any) -> Self:
        return cls(name, given, "at most", limit, **more)

    @computed_field  # type: ignore[prop-decorator]  # mypy does not know decorated properties
    @property
    def is_passed(self) -> bool:
        """NaN passes no limit."""
        return _COMPARISONS[self.must_be](self.given, self.limit)

    def __str__(self) -> str:
        is_count = self.limit > 1 and self.given.is_integer()
        given = f"{self.given:,.0f}" if is_count else f"{self.given:.4f}"
        beside = f" ({self.note})" if self.note else ""
        return f"{self.name} is {given}{beside}, {self.must_be} {self.limit:g}: {'yes' if self.is_passed else 'NO'}"


class PairedFigures(Record, extra="ignore"):
    """Figures of two packages on the same items."""

    metric: str
    candidate: float
    champion: float
    low: float
    # `low` and `high` are the ends of the 95 % interval of candidate minus champion: bootstrap over the items, with the
    # answers of both to an item drawn together.
    high: float
    num_items: int  # number of documents, texts, pairs or questions
    items: str  # file of the items, relative to the project
    items_sha256: str
    # Bytes of text per token of the champion; None unless the figure is `nats_per_byte`.
    champion_bytes_per_token: float | None = None

    @property
    def difference(self) -> float:
        """Candidate minus champion."""
        return self.candidate - self.champion

    def __str__(self) -> str:
        return (
            f"{self.metric} {self.candidate:.4f}, the champion's {self.champion:.4f}: a difference of "
            f"{self.difference:+.4f} (95 %: {self.low:+.4f} to {self.high:+.4f}) over {self.num_items:,} items of "
            f"{self.items} (sha256 {self.items_sha256[:12]})"
        )

    def as_perplexity_ratio(self, difference: float) -> float:
        """Return the ratio of perplexities per token of the champion for a difference of nats per byte.

        Perplexity depends on the tokenizer: at equal model quality, longer tokens give a higher perplexity. The loss
        per byte of text does not. With equal tokenizers this is the plain ratio.
        """
        assert self.champion_bytes_per_token is not None
        return math.exp(difference * self.champion_bytes_per_token)
