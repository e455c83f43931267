"""Tables for plots and reports, as CSV."""

import csv
from collections.abc import Iterable, Sequence
from pathlib import Path

from clozeline.storage.atomic import replacing_file


def write_csv(path: Path, header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """UTF-8, and a line feed after each row wherever it is written: the same rows are the same bytes."""
    with replacing_file(path) as beside, beside.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(header)
        writer.writerows(rows)
