"""Tasks of GLUE, a table of files, columns, labels and metrics, and the user's files of them.

The files are the official folders of .tsv, or the Parquet files of the hub's `nyu-mll/glue`. How each task is trained
is a preset of params.yaml.
"""

import hashlib
import heapq
import json
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ruamel.yaml import YAML

from clozeline.records.reading.files import PARQUET_SUFFIXES, check_fields, read_parquet
from clozeline.records.reading.streams import lines_of
from clozeline.records.record import Record
from clozeline.system.errors import DataError, ParamsError
from clozeline.system.files import replacing_folder

_LOG = logging.getLogger(__name__)
# Share of lines that may lack columns: a few of QQP's do.
_MOST_SHORT = 0.001
Row = dict[str, Any]
# Part of a task → its files.
Files = Mapping[str, Sequence[Path]]
TRAIN, DEV = "train", "dev"
# Fields of the written records, beside the texts.
LABEL, PART = "label", "part"


class GlueTask(Record):
    """One task; `tasks.yaml` says what the fields mean."""

    name: str  # name of its dataset on the hub
    title: str
    columns: Mapping[str, str | int]
    label_column: str | int
    labels: tuple[str, ...]
    metrics: tuple[str, ...]
    parts: Mapping[str, str] = {"dev": "validation"}
    in_average: bool = True

    @property
    def preset(self) -> str:
        """Name of its preset in params.yaml."""
        return self.name if self.labels else f"{self.name}_together"

    @property
    def has_header(self) -> bool:
        """Whether the official .tsv has one."""
        return isinstance(self.label_column, str)


@cache
def glue_tasks() -> Mapping[str, GlueTask]:
    """Return the tasks by name, in the order of the leaderboard."""
    table = YAML(typ="safe").load(Path(__file__).with_name("tasks.yaml").read_text(encoding="utf-8"))
    return MappingProxyType({name: GlueTask(name=name, **fields) for name, fields in table.items()})


def chosen(names: str | None) -> list[GlueTask]:
    """Return the tasks named in a list with commas; all of them if there is none.

    Raises:
        ParamsError: a name is unknown.
    """
    tasks = glue_tasks()
    if names is None:
        return list(tasks.values())
    wanted = [plain(name) for name in names.split(",") if name.strip()]
    unknown = [name for name in wanted if name not in tasks]
    if unknown or not wanted:
        raise ParamsError(
            f"GLUE has no such task: {', '.join(unknown) or 'no name'}; it has {', '.join(tasks)}",
            do="write for example `--tasks cola,rte`, or leave --tasks out for all",
        )
    return [tasks[name] for name in tasks if name in wanted]


def plain(name: str) -> str:
    """Return the name of a task or its folder in small letters without signs: `sst2` for `SST-2`."""
    return "".join(sign for sign in name.lower() if sign.isalnum())


def found_in(folder: Path, task: GlueTask) -> Files | None:
    """Return the files of a task in the user's folder, by part; None if the folder lacks the task.

    Raises:
        DataError: the task has a folder that lacks a part.
    """
    own = next((inner for inner in sorted(folder.iterdir()) if inner.is_dir() and plain(inner.name) == task.name), None)
    if own is None:
        return None
    named = {TRAIN: TRAIN, **task.parts}
    files = {official: _files(own, official) or _files(own, on_hub) for official, on_hub in named.items()}
    if missing := [official for official, paths in files.items() if not paths]:
        expected = " and ".join(f"{official}.tsv (or {on_hub}-*.parquet)" for official, on_hub in named.items())
        there = ", ".join(sorted(it.name for it in own.iterdir()))
        raise DataError(
            f"{own} lacks {', '.join(missing)} of {task.title}: it has {there}",
            do=f"add the files, {expected}, or leave the task out: `--tasks` without {task.name}",
        )
    return files


def _files(folder: Path, part: str) -> tuple[Path, ...]:
    """Return the .tsv file of a part, or its Parquet files: `part.parquet`, `part-*.parquet` or `part/*.parquet`."""
    tables = sorted(folder.glob(f"{part}.tsv*"))[:1]
    patterns = [pattern for suffix in PARQUET_SUFFIXES for pattern in (f"{part}{suffix}", f"{part}-*{suffix}")]
    patterns += [f"{part}/*{suffix}" for suffix in PARQUET_SUFFIXES]
    return tuple(tables or (path for pattern in patterns for path in sorted(folder.glob(pattern))))


def write_records(task: GlueTask, files: Files, out: Path, limit: int | None) -> dict[str, int]:
    """Write train.jsonl and dev.jsonl with the fields of the task's preset; return the number of rows of each.

    Args:
        limit: largest number of rows of each part, chosen by the hashes of their texts; None: all.

    Raises:
        DataError: a file cannot be read, or a label is hidden or unknown.
    """

    def draw(row: Row) -> bytes:
        return hashlib.sha256("\n".join(row[name] for name in task.columns).encode()).digest()

    def limited(rows: Iterable[Row]) -> Iterable[Row]:
        return rows if limit is None else heapq.nsmallest(limit, rows, key=draw)

    num = {}
    with replacing_folder(out) as folder:
        for name, parts in ((TRAIN, [TRAIN]), (DEV, [*task.parts])):
            rows = [row for part in parts for row in limited(_rows(task, part, files[part]))]
            text = "".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows)
            (folder / f"{name}.jsonl").write_text(text, encoding="utf-8")
            num[name] = len(rows)
    return num


def part_of_texts(data: Path, task: GlueTask) -> dict[str, str]:
    """Return the part that each row of dev.jsonl is from, by its texts joined by a space, as reports give them."""
    with (data / f"{DEV}.jsonl").open(encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    return {" ".join(row[name].strip() for name in task.columns): row[PART] for row in reversed(rows)}


def _rows(task: GlueTask, part: str, paths: Sequence[Path]) -> Iterator[Row]:
    for path in paths:
        if path.suffix in PARQUET_SUFFIXES:
            fields = {name: name for name in (*task.columns, LABEL)}
            records = read_parquet(path, fields)
        else:
            records = _separated(task, path)
        for place, values in records:
            texts = {name: values[name] for name in task.columns}
            if wrong := [name for name, text in texts.items() if not isinstance(text, str)]:
                raise _wrong(place, f"{wrong[0]}: {texts[wrong[0]]!r} is no text")
            yield {**texts, LABEL: _label(task, values[LABEL], place), PART: part}


def _separated(task: GlueTask, path: Path) -> Iterator[tuple[str, Row]]:
    """Yield the rows of an official .tsv with the hub's names. Quotes are text there, and many are unpaired."""
    lines = enumerate(lines_of(path), start=1)
    columns = {**task.columns, LABEL: task.label_column}
    header = next(lines, (0, ""))[1].rstrip("\r\n").split("\t") if task.has_header else []
    if task.has_header:
        check_fields(header, {f"{task.title}'s {name}": str(column) for name, column in columns.items()}, path)
    place = {name: header.index(it) if isinstance(it, str) else it for name, it in columns.items()}
    num_lines, short = 0, []
    for number, line in lines:
        num_lines += 1
        cells = line.rstrip("\r\n").split("\t")
        if len(cells) <= max(place.values()):
            short.append(number)
            continue
        yield f"{path}, line {number}", {name: cells[column] for name, column in place.items()}
    if len(short) > max(1, _MOST_SHORT * num_lines) or num_lines == len(short):
        raise DataError(
            f"{path}: {len(short):,} of {num_lines:,} lines lack columns of {task.title}'s official file"
            + (f", the first of them line {short[0]}" if short else ""),
            do="download the file again; it must not have passed through a spreadsheet",
        )
    if short:
        _LOG.warning("%s: %d lines lack columns and are left out (first: line %d)", path, len(short), short[0])


def _label(task: GlueTask, value: Any, place: str) -> str | float:
    """Return the name of a label, which files have as a name or a number; the score of a task with scores."""
    if not task.labels:
        try:
            return float(value)
        except (TypeError, ValueError) as error:
            raise _wrong(place, f"score {value!r} is no number from 0 to 5") from error
    number = str(value).strip()
    if number in task.labels:
        return number
    if number.isdecimal() and int(number) < len(task.labels):
        return task.labels[int(number)]
    raise _wrong(place, f"label {value!r} is none of {', '.join(task.labels)}, nor its number, from 0")


def _wrong(place: str, fault: str) -> DataError:
    return DataError(
        f"{place}: the row cannot be used: {fault}",
        do="check that the file is a training or dev part of GLUE: labels of its test parts are secret",
    )
