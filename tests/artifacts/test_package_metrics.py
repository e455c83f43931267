"""Claim: the figures of a package are those that a stage writes for the model that it was exported from."""

from pathlib import Path

import pytest

from clozeline.records.package_metrics import MetricPaths


@pytest.mark.parametrize(
    ("model", "quality"),
    [
        ("encoder", "evaluate.json"),
        ("encoder/generator", "evaluate.json"),  # objective rtd: `evaluate` measures the generator
        ("finetuned/library", "finetune/library.json"),
        (None, None),
    ],
)
def test_each_model_has_the_metric_file_of_its_stage(model: str | None, quality: str | None) -> None:
    paths = MetricPaths.of("some", model)
    assert paths.quality == (Path(quality) if quality else None)
    assert paths.export == Path("export/some.json")
