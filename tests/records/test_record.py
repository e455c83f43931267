"""A record round-trips in its exact bytes, NaN stays NaN, and a file that is no record is refused by its fault. A
figure is written with its limit and the verdict."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
from pydantic import TypeAdapter

from clozeline.records.package import Rung
from clozeline.records.record import Limit, MetricFile, Record
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
    ((_, (known,)),) = MetricFile.read(tmp_path / "metrics.json")
    read = Rung.model_validate(known)
    assert math.isnan(read.saturation)
    assert read.model_copy(update={"saturation": 0.0}) == rung.model_copy(update={"saturation": 0.0})


class Point(Record):
    place: int
    note: str | None = None


def test_a_file_that_is_no_record_is_refused_by_its_first_fault(tmp_path: Path) -> None:
    for content, named in (
        (None, "there is no file"),
        ('{"place": "x"}', "place: 'x'"),
        ('{"place": 1, "size": 2}', "size: '2'"),
        ("{}", "place"),
        ("no JSON", "the whole file"),
    ):
        path = tmp_path / "point.json"
        if content is not None:
            path.write_text(content, encoding="utf-8")
        with pytest.raises(ArtifactError) as caught:
            Point.read(path, do="repair it")
        assert named in caught.value.problem
        assert str(path) in caught.value.problem
        assert caught.value.do == "repair it"


def test_records_survive_a_round_trip_and_a_missing_one_can_have_a_default(tmp_path: Path) -> None:
    assert Point.read(tmp_path / "point.json", absent=Point(place=0)) == Point(place=0)
    Point(place=1).write(tmp_path / "point.json")
    assert (tmp_path / "point.json").read_text() == '{\n  "place": 1,\n  "note": null\n}\n'
    assert Point.read(tmp_path / "point.json") == Point(place=1)
    path = tmp_path / "points.jsonl"
    assert Point.lines(path) == []
    path.write_text('{"place": 1, "note": "a\u2028b"}\n{"place": 2}\n', encoding="utf-8")
    assert Point.lines(path) == [Point(place=1, note="a\u2028b"), Point(place=2)]
    path.write_text('{"place": 1}\n\n', encoding="utf-8")
    with pytest.raises(ArtifactError, match=rf"{path}:2 cannot be used"):
        Point.lines(path)


def test_a_figure_passes_its_limit() -> None:
    for must_be, of_less, of_equal, of_more in (
        ("at least", 0, 1, 1),
        ("at most", 1, 1, 0),
        ("above", 0, 0, 1),
        ("below", 1, 0, 0),
    ):
        assert [Limit("x", given, must_be, 2.0).is_passed for given in (1.0, 2.0, 3.0)] == [of_less, of_equal, of_more]
        assert not Limit("x", math.nan, must_be, 2.0).is_passed


def test_a_limit_is_told_in_one_line_and_written_with_its_verdict_and_without_its_note() -> None:
    assert str(Limit.at_least("agreement", 0.91234, 0.96)) == "agreement is 0.9123, at least 0.96: NO"
    count = Limit.at_most("documents", 1200.0, 2000.0, note="1,000 before")
    assert str(count) == "documents is 1,200 (1,000 before), at most 2000: yes"
    limits = TypeAdapter(Limit)
    keys = b'{"name":"saturation","given":"NaN","must_be":"at most","limit":0.0,"is_passed":false}'
    assert limits.dump_json(Limit.at_most("saturation", math.nan, 0.0, note="shown only")) == keys
    read = limits.validate_json(keys)
    assert math.isnan(read.given)
    assert replace(read, given=0.0) == Limit.at_most("saturation", 0.0, 0.0)
