"""A metric file is read as it was written: what there is none of is left out, and what is not a number stays one."""

import math
from pathlib import Path

from clozeline.artifacts.evidence import Check, Measured, QuantizationScheme, Rung
from clozeline.artifacts.export_metrics import ExportMetrics

MEASURED = Measured(value=0.9, low=0.8, high=1.0, num_items=10, num_texts=5)


def test_a_metric_file_is_read_as_it_was_written(tmp_path: Path) -> None:
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
