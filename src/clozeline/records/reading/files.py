"""Records in files: formats by suffix, readers of JSON Lines, CSV and Parquet, and files that a pattern selects.

Readers turn lines into records with their location, and check that the fields named in the configuration exist.

A split of a Hugging Face hub dataset, or of a local folder with the same layout, is streamed through `datasets`.
"""

import csv
import difflib
import re
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from clozeline.records.reading.streams import OnBad, lines_of, parsed, stop
from clozeline.system.errors import DataError, TransientError

# Knob → field name. Messages mention both.
Fields = Mapping[str, str]
# Minimum length of the shorter name when a name is suggested because one contains the other.
_LEAST_IN_COMMON = 3

_MOST_FIELD_CHARACTERS = 32_000_000
_SEPARATORS: Mapping[str, str] = {",": "a comma", ";": "a semicolon", "\t": "a tab", "|": "a vertical bar"}

# Location for messages, and values by field. A plain tuple, because there are millions.
PlacedRecord = tuple[str, dict[str, Any]]

_COMPRESSION_SUFFIXES = {".gz", ".bz2", ".zst", ".zstd"}
FormatReader = Callable[[Path, Fields], Iterator[PlacedRecord]]
_PARQUET_ROWS = 1_000
PARQUET_SUFFIXES = (".parquet", ".pq")
# Finds the commit in the path of a hub dataset, `hf://datasets/NAME@COMMIT`.
_COMMIT = re.compile("@([0-9a-f]{40})")
# Class id that hub datasets use for items without a public label.
_UNLABELLED = -1


def check_fields(present: Collection[str], fields: Fields, place: object, *, records_before: bool = False) -> None:
    """Check that every field is present.

    Args:
        present: names of the fields of this record.
        fields: the fields that the knobs name.
        place: location of the record, for messages.
        records_before: earlier records have every field, so the name is right and this record is wrong.

    Raises:
        DataError: a field is missing.
    """
    for knob, name in fields.items():
        if name not in present:
            free = [field for field in present if field not in fields.values()]
            rename = f"set `{knob}` to {nearest(name, free) or 'one of these fields'}"
            add = "earlier records have this field: add it to this record, or remove the record"
            raise DataError(
                f"{place}: no field `{name}`",
                given=f"fields: {', '.join(present) or 'none'}",
                expected=f"a field `{name}`, which `{knob}` names",
                do=add if records_before else rename,
            )


def nearest(name: str, present: Collection[str]) -> str | None:
    """Return the field whose name is closest to `name`; None if none is close."""
    plain = {field.casefold(): field for field in present}
    wanted = name.casefold()
    near = difflib.get_close_matches(wanted, plain, n=1)
    inside = (field for field in plain if min(len(field), len(wanted)) >= _LEAST_IN_COMMON)
    found = near[0] if near else next((field for field in inside if field in wanted or wanted in field), None)
    return None if found is None else plain[found]


def json_records(
    lines: Iterable[str],
    file: str,
    fields: Fields,
    first_line: int = 1,
    *,
    keeps_halves: bool = False,
    on_bad: OnBad = stop,
) -> Iterator[PlacedRecord]:
    """Yield one JSON object per line; skip blank lines. `keeps_halves`: as for `parsed`.

    Raises:
        DataError: a line is not a JSON object, or lacks a field; unless `on_bad` takes the error.
    """
    names = (*fields.values(),)
    records_before = False
    for number, line in enumerate(lines, start=first_line):
        if line.strip():
            place = f"{file}, line {number}"
            try:
                values = _object(line, place, fields, keeps_halves=keeps_halves)
                for name in names:
                    if name not in values:
                        check_fields(values, fields, place, records_before=records_before)
            except DataError as error:
                on_bad(error)
                continue
            yield place, values
            records_before = True


def _object(line: str, place: str, fields: Fields, *, keeps_halves: bool) -> dict[str, Any]:
    try:
        values = parsed(line, keeps_halves=keeps_halves)
    except ValueError as error:
        raise _not_an_object(place, f"{line.strip()[:80]} ({error})", fields) from error
    if not isinstance(values, dict):
        raise _not_an_object(place, f"{type(values).__name__}: {line.strip()[:80]}", fields)
    return values


def separated_records(
    lines: Iterable[str], file: str, fields: Fields, *, delimiter: str, on_bad: OnBad = stop
) -> Iterator[PlacedRecord]:
    """Yield rows of CSV with a header; quoted fields may hold line ends and separators (RFC 4180). Rows without any
    content are skipped.

    Raises:
        DataError: unbalanced quotes, a missing field, or a row with another number of columns than the header, unless
            `on_bad` takes the error of such a row.
    """
    csv.field_size_limit(_MOST_FIELD_CHARACTERS)
    rows = csv.reader(lines, delimiter=delimiter, strict=True)
    try:
        header = next(filter(None, rows), [])
        place = f"{file}, line {max(rows.line_num, 1)}"
        _check_separator(header, delimiter, fields, place)
        check_fields(header, fields, place)
        for row in rows:
            if len(row) == len(header):
                yield f"{file}, line {rows.line_num}", dict(zip(header, row, strict=True))
            elif any(map(str.strip, row)):
                on_bad(_not_as_wide(f"{file}, line {rows.line_num}", row, header))
    except csv.Error as error:
        raise DataError(
            f'{file}, line {rows.line_num}: not CSV with double quotes, a quote in a field as "": {error}',
            do="fix the quotes near that line (an unclosed quote reaches to the end of the file)",
        ) from error


def _check_separator(header: Sequence[str], delimiter: str, fields: Fields, place: str) -> None:
    if len(header) != 1 or header[0] in fields.values():
        return
    found = next((sign for sign in _SEPARATORS if sign != delimiter and sign in header[0]), None)
    if found:
        raise DataError(
            f"{place}: separated by {_SEPARATORS[found]}, not {_SEPARATORS[delimiter]}: {header[0][:160]}",
            do=f"save the file with {_SEPARATORS[delimiter]}, or rename it: .csv for commas, .tsv for tabs",
        )


def _not_as_wide(place: str, row: Sequence[str], header: Sequence[str]) -> DataError:
    return DataError(
        f"{place}: {len(row)} columns, but the header has {len(header)}",
        given=f"{row}"[:160],
        expected=f"columns: {', '.join(header)}",
        do="put double quotes around fields that hold a separator, or fix the row",
    )


def _not_an_object(place: str, given: str, fields: Fields) -> DataError:
    example = ", ".join(f'"{name}": …' for name in fields.values())
    return DataError(
        f"{place}: not a JSON object",
        given=given,
        expected=f"one JSON object per line, like {{{example}}}",
        do="write one object per line (an array becomes lines with `jq -c '.[]' OLD > NEW`)",
    )


def format_of(path: Path) -> str:
    """Return the suffix of the format: `.csv` for `posts.CSV.gz`."""
    name = PurePosixPath(path.name.lower())
    return PurePosixPath(name.stem).suffix if name.suffix in _COMPRESSION_SUFFIXES else name.suffix


def read_parquet(path: Path, fields: Fields, start: int = 0, end: int | None = None) -> Iterator[PlacedRecord]:
    """Read the named columns, with a thousand rows in memory at a time.

    Args:
        start: first byte of the range in which the row groups to read begin.
        end: first byte behind the range; None: the end of the file.

    Raises:
        DataError: the file is damaged, or has no such columns.
    """
    try:
        with pq.ParquetFile(path) as table:
            check_fields(table.schema_arrow.names, fields, path)
            groups = [table.metadata.row_group(number) for number in range(table.num_row_groups)]
            places = [group.column(0).data_page_offset for group in groups]
            chosen = [number for number, place in enumerate(places) if start <= place and (end is None or place < end)]
            row = sum(group.num_rows for group in groups[: chosen[0]]) if chosen else 0
            columns = [*fields.values()]
            for batch in table.iter_batches(_PARQUET_ROWS, chosen, columns=columns, use_threads=False):
                for values in batch.to_pylist():
                    row += 1
                    yield f"{path}, row {row}", values
    except (pa.ArrowInvalid, OSError) as error:
        if getattr(error, "errno", None) is not None:
            raise
        raise DataError(
            f"{path}: not a complete Parquet file: {error}",
            do="write or copy the file again; if it is in another format, correct its suffix",
        ) from error


def read_json_lines(path: Path, fields: Fields) -> Iterator[PlacedRecord]:
    with closing(lines_of(path)) as lines:
        yield from json_records(lines, str(path), fields)


def read_separated(path: Path, fields: Fields, *, delimiter: str) -> Iterator[PlacedRecord]:
    with closing(lines_of(path)) as lines:
        yield from separated_records(lines, str(path), fields, delimiter=delimiter)


FORMATS: Mapping[str, FormatReader] = {
    **dict.fromkeys(PARQUET_SUFFIXES, read_parquet),
    ".jsonl": read_json_lines,
    ".ndjson": read_json_lines,
    ".csv": partial(read_separated, delimiter=","),
    ".tsv": partial(read_separated, delimiter="\t"),
}


def matching_files(path: Path, pattern: str) -> list[Path]:
    """Return the file itself, or the matching files below a folder that are not hidden, in the order of their names.

    Raises:
        DataError: no file matches.
    """
    if path.is_file():
        return [path]
    files = [file for file in path.glob(pattern) if file.is_file() and not is_hidden(label_of(file, path))]
    if not files:
        raise no_match(str(path), pattern, sorted(entry.name for entry in path.iterdir()))
    return sorted(files, key=lambda file: label_of(file, path))


def label_of(file: Path, source: Path) -> str:
    """Return the file's name within the source, so that the label does not depend on the location of the source."""
    return file.name if file == source else file.relative_to(source).as_posix()


def is_hidden(label: str) -> bool:
    return any(part.startswith(".") for part in label.split("/"))


def no_match(place: str, pattern: str, names: list[str]) -> DataError:
    """Return the error for a folder with the entries `names`, none of which matches."""
    some = ", ".join(names[:5]) + (", …" if len(names) > 5 else "") if names else "nothing"
    return DataError(
        f"{place}: no file matches {pattern}; the folder holds {some}", do="correct `source.path` or `source.pattern`"
    )


@dataclass(frozen=True)
class HubSplit:
    """A split to read, and the names of the knobs that selected it, for messages."""

    dataset: str
    subset: str | None
    split: str
    revision: str | None
    knobs: str

    def __str__(self) -> str:
        return f"{self.dataset}{f' ({self.subset})' if self.subset else ''}, {self.split}"


def hub_records(of: HubSplit, fields: Fields) -> Generator[PlacedRecord, None, None]:
    """Yield rows in the hub's order. Class ids become class names, or None for items without a public label.

    Raises:
        DataError: the dataset, configuration or split does not exist; while reading: a row lacks a field.
        TransientError: the hub did not answer, at the start or while reading.
    """
    with _trouble_named(of):
        import datasets

        rows = datasets.load_dataset(of.dataset, of.subset, split=of.split, revision=of.revision, streaming=True)
    return _rows(rows, of, fields)


def commit_of(of: HubSplit) -> str | None:
    """Return the commit that `of.revision` points to now; None for a local folder or a dataset in the cache only.

    Raises:
        DataError: the dataset, configuration or revision does not exist.
        TransientError: the hub did not answer.
    """
    if Path(of.dataset).exists():
        return None
    with _trouble_named(of):
        import datasets

        place = datasets.load_dataset_builder(of.dataset, of.subset, revision=of.revision).base_path
    found = _COMMIT.search(place or "")
    return found[1] if found else None


def _rows(rows: Any, of: HubSplit, fields: Fields) -> Generator[PlacedRecord, None, None]:
    names = {field: found for field in fields.values() if (found := _class_names(rows, field))}
    with _trouble_named(of):
        for number, row in enumerate(rows):
            place = f"{of} row {number}"
            check_fields(row, fields, place)
            yield place, row | {field: _spelled(row[field], of_field) for field, of_field in names.items()}


def _class_names(rows: Any, field: str) -> list[str]:
    """Class names of a field that holds a class id or a list of class ids."""
    feature = (rows.features or {}).get(field)
    names: list[str] = getattr(getattr(feature, "feature", feature), "names", [])
    return names


def _spelled(value: Any, names: list[str]) -> Any:
    if isinstance(value, list):
        return [_spelled(inner, names) for inner in value]
    if value == _UNLABELLED:
        return None
    return names[value] if isinstance(value, int) else value


@contextmanager
def _trouble_named(of: HubSplit) -> Iterator[None]:
    try:
        yield
    except (FileNotFoundError, ValueError) as error:
        raise DataError(
            f"{of.dataset}: cannot read split {of.split} (subset {of.subset}, revision {of.revision}): {error}",
            do=f"correct {of.knobs}",
        ) from error
    except OSError as error:
        raise TransientError(
            f"{of.dataset}: the hub did not answer: {error}", do=f"try again, or name a folder in {of.knobs}"
        ) from error
