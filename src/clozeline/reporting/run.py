"""Inputs of a report, the files of a project and what MLflow knows about them; its pieces; and several runs compared.

The Jinja2 templates of the page escape everything but `Markup`, because texts of users may hold HTML.

A metric file becomes a table: each figure with its interval, beside the same figure of other methods: `unigram_X` or
`baseline_tfidf_X` is X of another method.
"""

import csv
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape
from pydantic import TypeAdapter, ValidationError

from clozeline.records.record import Lock
from clozeline.reporting import formats
from clozeline.system import errors, files
from clozeline.system.files import RowRecord

if TYPE_CHECKING:
    from clozeline.registry.decisions import Released
    from clozeline.tracking.past_runs import PastRun, PastRuns


Result = TypeVar("Result")
# Row of a CSV file: column → text.
Row = Mapping[str, str]
# Function that returns a piece of a section, or None if it is empty; raises `ClozelineError` if files are missing.
Part = Callable[[], Markup | None]
_LOW = "_low"
_ENDINGS: Mapping[str, str] = {"value": "", "low": _LOW, "high": "_high"}
_TASK = "finetune/"
_ALONE = "pseudo_"
_NO_PARAMS = "The params of {} are unknown, because MLflow no longer has its dvc.lock."
_QUOTED = re.compile(r"`([^`]+)`")


@dataclass(frozen=True)
class RunFiles:
    """The files of a project, by path relative to its root. An unreadable file raises `ArtifactError`."""

    root: Path

    def lock(self) -> Lock:
        return Lock.read(self.root / "dvc.lock")

    def json(self, path: str, kind: type[Result], *, stage: str) -> Result:
        """Read a JSON file as `kind`; raises ArtifactError if stage `stage` has not written it, or it is damaged."""
        adapter = TypeAdapter(kind)
        return self._read(path, stage, "a JSON file of that stage", lambda it: adapter.validate_json(it.read_bytes()))

    def figures(self, path: str, *, stage: str) -> Mapping[str, Any]:
        """Read a metric file; raises ArtifactError like `json`."""
        return self.json(path, dict[str, Any], stage=stage)

    def csv(self, path: str, *, stage: str) -> list[Row]:
        """Read the rows of a CSV file; raises ArtifactError like `json`."""
        return self._read(path, stage, "a CSV file", _csv_rows)

    def rows(self, path: str, kind: type[RowRecord], *, stage: str) -> list[RowRecord]:
        """Read the rows as records of `kind`; raises ArtifactError like `json`.

        An empty cell stands for the default of its field.
        """
        adapter = TypeAdapter(list[kind])  # type: ignore[valid-type]  # a type known at run time
        optional = {field.name for field in fields(kind) if field.default is not MISSING}

        def read(file: Path) -> list[RowRecord]:
            rows = _csv_rows(file, *(field.name for field in fields(kind)))
            cells = [{name: text for name, text in row.items() if text or name not in optional} for row in rows]
            return adapter.validate_python(cells)

        return self._read(path, stage, f"a CSV file of {kind.__name__}", read)

    def names(self, pattern: str) -> list[str]:
        """Return the sorted paths of the matching files."""
        return sorted(file.relative_to(self.root).as_posix() for file in self.root.glob(pattern) if file.is_file())

    def md5(self, path: str) -> str:
        """Return the MD5 of a file, as DVC computes it; raises ArtifactError if the file is missing."""
        return self._read(path, "", "a file", files.md5_of)

    def _read(self, path: str, stage: str, expected: str, read: Callable[[Path], Result]) -> Result:
        try:
            return read(self.root / path)
        except FileNotFoundError as error:
            raise errors.ArtifactError(
                f"{path}, which stage {stage} writes, is missing",
                do=f"run the stages: `clozeline run`, or `dvc repro {stage}`",
            ) from error
        except (ValueError, csv.Error) as error:
            fault = error.errors(include_url=False)[0] if isinstance(error, ValidationError) else None
            given = f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" if fault else str(error)
            raise errors.ArtifactError(
                f"{path} cannot be read as {expected}: {given[:200]}",
                do=f"run the stage that writes it again: `dvc repro --force --single-item {stage}`",
            ) from error


def _csv_rows(file: Path, *columns: str) -> list[Row]:
    """Return the rows of a CSV file, each with a value in all `columns`."""
    with file.open(encoding="utf-8", newline="") as stream:
        reader = csv.DictReader(stream)
        rows: list[Row] = list(reader)
        lacking = [name for name in columns if name not in (reader.fieldnames or ())]
    if lacking or any(row[name] is None for row in rows for name in columns):
        raise ValueError(f"no column {lacking[0]}" if lacking else "a row with missing values")
    return rows


@dataclass(frozen=True)
class ReportedRun:
    """One state of a project. `released` and `past` query a server on demand and may raise `ClozelineError`."""

    files: RunFiles
    tasks: Sequence[str]  # names of the tasks in params.yaml
    packages: Mapping[str, str | None]  # name under `dist/` → folder under `models/`; None: a published model
    # Function that returns the release of a package; None if it was never registered.
    released: Callable[[str], "Released | None"]
    past: Callable[[], "PastRuns"]  # function that returns the runs behind dvc.lock
    machine: Mapping[str, str]  # facts about the machine that the report is made on
    built_at: datetime
    is_causal: bool = False  # whether the encoder predicts the next token of a text instead of hidden ones


@dataclass(frozen=True)
class Fold:
    """Pieces behind a summary line, unfolded if one of their files is missing."""

    summary: str
    parts: Sequence[Part]


@dataclass(frozen=True)
class ReportSection:
    """A chapter of the report. Its introduction is in `templates/leads.html`."""

    id: str
    title: str
    parts: Callable[[ReportedRun], Iterable[Part | Fold]]
    is_open: bool = False  # whether the chapter starts unfolded


@cache
def _templates() -> Environment:
    made = Environment(
        loader=PackageLoader("clozeline.reporting"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
        auto_reload=False,
    )
    forms = (formats.amount, formats.count, formats.in_words, formats.share, formats.short, with_code)
    made.filters |= {form.__name__: form for form in forms}
    made.tests["finite"] = math.isfinite
    return made


def html(template: str, **values: object) -> Markup:
    """Render `templates/<template>.html` with `values`."""
    return Markup(_templates().get_template(f"{template}.html").render(values))


def table(caption: str, columns: Sequence[str], rows: Sequence[object], kind: str = "") -> Markup:
    """Return a table; a column whose name begins with `>` holds numbers."""
    return html("table", caption=caption, columns=columns, rows=rows, kind=kind)


def facts(pairs: Iterable[tuple[object, object]]) -> Markup:
    return html("facts", pairs=pairs)


def folded(summary: str, body: object) -> Markup:
    return html("folded", summary=summary, body=body)


def message(text: str, kind: str, tag: str = "span") -> Markup:
    return html("message", tag=tag, kind=kind, text=text)


def with_code(text: object) -> Markup:
    """Escape `text`, and set what is in back quotes, such as a command in an error, as code."""
    return Markup(_QUOTED.sub(r"<code>\1</code>", str(escape(text))))


def code(text: object) -> Markup:
    return html("code", text=text)


def verdict(is_good: bool, text: str) -> Markup:
    return message(f"{'✓' if is_good else '✗'} {text}", "good" if is_good else "bad")


def joined(*pieces: object) -> Markup:
    """Return the concatenation of the pieces, without those that are None."""
    return Markup("").join(escape(piece) for piece in pieces if piece is not None)


def differences(locks: Sequence[Lock]) -> Mapping[str, tuple[str, ...]]:
    """Return the value in each lock of each differing knob, and the hashes of data and code that no stage makes."""
    changes = {}
    for read in (knobs, _sources):
        values = [read(lock) for lock in locks]
        for key in sorted(set().union(*values)):
            row = tuple(each.get(key, "–") for each in values)
            if len(set(row)) > 1:
                changes[key] = row
    return changes


def knobs(lock: Lock) -> dict[str, str]:
    """Return the value of every knob that a stage ran with."""
    return {key: value for stage in lock.stages.values() for key, value in stage.flat_params().items()}


def _sources(lock: Lock) -> dict[str, str]:
    deps = [dep for stage in lock.stages.values() for dep in stage.deps]
    return {dep.path: (dep.md5 or "")[:10] for dep in deps if lock.maker_of(dep.path) is None}


def comparison(
    caption: str, ours: str, figures: Mapping[str, Any], others: Mapping[str, str], *, only: Sequence[str] = ()
) -> tuple[Markup | None, dict[str, float]]:
    """Return a table of the figures that another method has too, and of those in `only`; None if there are none.

    `others`: prefix of a key → name of the method. With it comes what the table does not show.
    """
    given = formats.numbers(figures)
    ends = {f"{key}{end}" for key in given for end in formats.ENDS}
    compared = [key for key in given if key not in ends and any(f"{prefix}{key}" in given for prefix in others)]
    shown = ends.union(f"{prefix}{key}" for key in compared for prefix in ("", *others))
    rest = {key: value for key, value in given.items() if key not in shown}
    keys = [*compared, *(key for key in only if key in given and key not in compared)]
    if not keys:
        return None, rest
    methods = {prefix: name for prefix, name in others.items() if any(f"{prefix}{key}" in given for key in keys)}
    has_interval = any(formats.interval(figures, key) for key in keys)
    rows = [
        (
            formats.in_words(key),
            html("cell", value=formats.format_of(key)(given[key]), beside=[formats.interval(figures, key)]),
            *(
                formats.format_of(key)(given[f"{prefix}{key}"]) if f"{prefix}{key}" in given else "–"
                for prefix in methods
            ),
        )
        for key in keys
    ]
    named = f"{ours}, 95 % interval" if has_interval else ours
    columns = ("figure", *(f">{name}" for name in (named, *methods.values())))
    return table(caption, columns, rows), rest


@dataclass(frozen=True)
class Cell:
    """A figure of one run in words."""

    value: str
    interval: str = ""  # its 95 % interval; "" if none was measured


@dataclass(frozen=True)
class RunComparison:
    """Runs in the order in which they were named."""

    runs: Sequence["PastRun"]

    @property
    def params(self) -> Mapping[str, tuple[str, ...]]:
        """Value in each run of each differing knob, source and file of code."""
        locks = [run.lock for run in self.runs]
        known = [lock for lock in locks if lock is not None]
        return differences(known) if len(known) == len(locks) else {}

    @property
    def notes(self) -> Sequence[str]:
        """Parts of the comparison that are missing, in words."""
        without_lock = [run.name for run in self.runs if run.lock is None]
        return [_NO_PARAMS.format(", ".join(without_lock))] if without_lock else []

    @property
    def final(self) -> Mapping[str, tuple[Cell, ...]]:
        """Figures that have a 95 % interval, by their name in words."""
        return {_words(key): tuple(_cell(run, key) for run in self.runs) for key in self._measured()}

    def record(self) -> dict[str, Any]:
        """Return the comparison for JSON: figures are numbers by the keys of their metric files."""
        return {
            "runs": [
                {"name": run.name, "run_id": run.run_id, "started": run.started.isoformat(), "commit": run.commit}
                for run in self.runs
            ],
            "params": self.params,
            "figures": {
                key: [{name: run.figures.get(f"{key}{end}") for name, end in _ENDINGS.items()} for run in self.runs]
                for key in self._measured()
            },
            "notes": self.notes,
        }

    def _measured(self) -> list[str]:
        """Return the keys of the figures with an interval: the encoder's first, then those of tasks."""
        ends = {key for run in self.runs for key in run.figures if key.endswith(_LOW)}
        return sorted((key.removesuffix(_LOW) for key in ends), key=_place)


def _cell(run: "PastRun", key: str) -> Cell:
    value = run.figures.get(key)
    return Cell("–") if value is None else Cell(formats.format_of(key)(value), formats.interval(run.figures, key))


def _place(key: str) -> tuple[int, str]:
    """Sort the encoder's figures before those of tasks, and these before all others."""
    return (0 if key.startswith("evaluate.") else 1 if key.startswith(_TASK) else 2), key


def _words(key: str) -> str:
    owner, _, name = key.partition(".")
    owner = "encoder" if owner == "evaluate" else owner.removeprefix(_TASK)
    alone = ", each hidden alone" if name.startswith(_ALONE) else ""
    return f"{owner}: {formats.in_words(name.removeprefix(_ALONE))}{alone}"
