"""A record round-trips in its exact bytes, NaN stays NaN, and a file that is no record is refused by its fault."""

import json
import math
from pathlib import Path

import pytest

from clozeline.records.limits import Limit
from clozeline.records.package import ExportMetrics, Rung
from clozeline.records.record import MetricFile, Record
from clozeline.system.errors import ArtifactError
from tests.make.packages import rung_of


def test_a_metric_file_has_exactly_the_expected_bytes(tmp_path: Path) -> None:
    """No stage depends on the code that writes records, so this test has to show a change of the bytes."""
    written = MetricFile.model_validate({"loss": math.nan, "top1": 0.5, "text_bytes": 3, "said": "größe", "none": None})
    written.write(tmp_path / "metrics.json")
    text = '{\n  "loss": "NaN",\n  "top1": 0.5,\n  "text_bytes": 3,\n  "said": "größe"\n}\n'
    assert (tmp_path / "metrics.json").read_bytes() == text.encode()


def test_metrics_survive_a_round_trip_through_the_file(tmp_path: Path) -> None:
    rung = rung_of(saturation=math.nan, checks=(Limit.at_most("saturation", 1.0, 0.0),))
    MetricFile.model_validate({"ladder": (rung,), "absent": None}).write(tmp_path / "metrics.json")
    assert "null" not in (tmp_path / "metrics.json").read_text()
    ((_, (known,)),) = MetricFile.read(tmp_path / "metrics.json")
    read = Rung.model_validate(known)
    assert math.isnan(read.saturation)
    assert read.model_copy(update={"saturation": 0.0}) == rung.model_copy(update={"saturation": 0.0})


def test_a_metric_file_without_int8_figures_is_refused_with_their_names(tmp_path: Path) -> None:
    """The error has the record's message, without pydantic's prefix."""
    figures = {"served": "int8", "fp32_size_bytes": 4, "parity_max_abs_difference": 0.0, "num_agreement_texts": 5}
    path = tmp_path / "metrics.json"
    path.write_text(json.dumps(figures | {"last_layer": "every position", "ladder": []}), encoding="utf-8")
    with pytest.raises(ArtifactError, match=r"metrics\.json cannot be used") as caught:
        ExportMetrics.read(path)
    assert "`int8_size_bytes` and `int8_agreement`" in caught.value.problem


class Point(Record):
    place: int
    note: str | None = None


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ('{"place": "x"}', "place: 'x'"),
        ('{"place": 1, "size": 2}', "size: '2'"),
        ("{}", "place"),
        ("no JSON", "the whole file"),
        (None, "there is no file"),
    ],
)
def test_a_file_that_is_no_record_is_refused_by_its_first_fault(
    tmp_path: Path, content: str | None, named: str
) -> None:
    path = tmp_path / "point.json"
    if content is not None:
        path.write_text(content, encoding="utf-8")
    with pytest.raises(ArtifactError) as caught:
        Point.read(path, do="repair it")
    assert named in caught.value.problem
    assert str(path) in caught.value.problem
    assert caught.value.do == "repair it"


def test_a_record_survives_a_round_trip_and_a_missing_one_can_have_a_default(tmp_path: Path) -> None:
    assert Point.read(tmp_path / "point.json", absent=Point(place=0)) == Point(place=0)
    Point(place=1).write(tmp_path / "point.json")
    assert (tmp_path / "point.json").read_text() == '{\n  "place": 1,\n  "note": null\n}\n'
    assert Point.read(tmp_path / "point.json") == Point(place=1)


def test_json_lines_are_read_one_by_one(tmp_path: Path) -> None:
    path = tmp_path / "points.jsonl"
    assert Point.lines(path) == []
    path.write_text('{"place": 1, "note": "a\u2028b"}\n{"place": 2}\n', encoding="utf-8")
    assert Point.lines(path) == [Point(place=1, note="a\u2028b"), Point(place=2)]
    path.write_text('{"place": 1}\n\n', encoding="utf-8")
    with pytest.raises(ArtifactError, match=rf"{path}:2 cannot be used"):
        Point.lines(path)
