"""Claim: a table has the same bytes wherever it is written, and its file is complete or absent."""

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from clozeline.system.files import write_csv, write_records


def test_csv_rows_survive_a_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "plots" / "table.csv"
    write_csv(path, ("label", "f1"), [('a "b", c', 0.5), ("größe\nin two lines", 1)])
    assert path.read_bytes() == 'label,f1\n"a ""b"", c",0.5\n"größe\nin two lines",1\n'.encode()
    with path.open(encoding="utf-8", newline="") as file:
        assert list(csv.reader(file)) == [["label", "f1"], ['a "b", c', "0.5"], ["größe\nin two lines", "1"]]


@dataclass(frozen=True)
class Point:
    step: int
    loss: float


def test_records_are_written_with_a_column_for_each_field(tmp_path: Path) -> None:
    write_records(tmp_path / "table.csv", Point, [Point(1, 0.5), Point(2, float("nan"))])
    assert (tmp_path / "table.csv").read_bytes() == b"step,loss\n1,0.5\n2,nan\n"


def test_a_failing_row_leaves_the_old_table_in_place(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    write_csv(path, ("x",), [(1,)])

    def rows() -> Iterator[tuple[int]]:
        yield (2,)
        raise ArithmeticError

    with pytest.raises(ArithmeticError):
        write_csv(path, ("x",), rows())
    assert path.read_text() == "x\n1\n"
    assert [file.name for file in tmp_path.iterdir()] == ["table.csv"]
