"""A metric file round-trips: None fields are omitted, and NaN stays NaN."""

import json
import math
from pathlib import Path

import pytest

from clozeline.records.package import Check, ExportMetrics, Measured, QuantizationScheme, Rung
from clozeline.records.record import MetricFile
from clozeline.system.errors import ArtifactError

MEASURED = Measured(value=0.9, low=0.8, high=1.0, num_items=10, num_texts=5)


def test_a_metric_file_has_exactly_the_expected_bytes(tmp_path: Path) -> None:
    """No stage depends on the code that writes records, so this test has to show a change of the bytes."""
    written = MetricFile.model_validate({"loss": math.nan, "top1": 0.5, "text_bytes": 3, "said": "größe", "none": None})
    written.write(tmp_path / "metrics.json")
    text = '{\n  "loss": "NaN",\n  "top1": 0.5,\n  "text_bytes": 3,\n  "said": "größe"\n}\n'
    assert (tmp_path / "metrics.json").read_bytes() == text.encode()


def test_metrics_survive_a_round_trip_through_the_file(tmp_path: Path) -> None:
    scheme = QuantizationScheme(
        activations="uint8 per token, dynamic",
        weights="int8 per column, symmetric",
        reduce_range=True,
        embeddings="float32",
        quantized_matmuls=1,
        quantized_embeddings=0,
        quantized_activations=1,
        exact_matmuls=(),
    )
    rung = Rung(
        scheme=scheme,
        size_bytes=1,
        agreement=MEASURED,
        different_answers=2,
        metric="accuracy",
        fp32_metric=0.5,
        int8_metric=0.5,
        metric_ratio=MEASURED,
        batch_flips=MEASURED,
        saturation=math.nan,
        checks=(Check(name="saturation", given=1.0, must_be="at most", limit=0.0, is_passed=False),),
    )
    written = ExportMetrics(
        served="fp32",
        fp32_size_bytes=4,
        parity_max_abs_difference=0.0,
        last_layer="every position",
        num_agreement_texts=5,
        ladder=(rung,),
    )
    written.write(tmp_path / "metrics.json")
    read = ExportMetrics.read(tmp_path / "metrics.json")
    assert "null" not in (tmp_path / "metrics.json").read_text()
    assert math.isnan(read.ladder[0].saturation)
    plain = {"saturation": 0.0}
    assert read.ladder[0].model_copy(update=plain) == rung.model_copy(update=plain)


def test_a_metric_file_without_int8_figures_is_refused_with_their_names(tmp_path: Path) -> None:
    """The error has the record's message, without pydantic's prefix."""
    figures = {"served": "int8", "fp32_size_bytes": 4, "parity_max_abs_difference": 0.0, "num_agreement_texts": 5}
    path = tmp_path / "metrics.json"
    path.write_text(json.dumps(figures | {"last_layer": "every position", "ladder": []}), encoding="utf-8")
    with pytest.raises(ArtifactError, match=r"metrics\.json cannot be used") as caught:
        ExportMetrics.read(path)
    assert "`int8_size_bytes` and `int8_agreement`" in caught.value.problem
