"""What the export stage is asked with."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from clozeline.params import ExportGates, ExportParams, read_params
from tests.trained_models import PROJECT

ExportModel = Callable[..., Path]
OPEN = ExportGates(
    min_agreement=0,
    min_agreement_texts=1,
    min_different_answers=1,
    min_metric_ratio=0,
    min_metric_items=1,
    min_embedding_cosine=0,
    max_batch_flips=1,
    min_batch_cosine=0,
)


@pytest.fixture(scope="module")
def params() -> ExportParams:
    return read_params(PROJECT / "params.yaml").export


def metrics_of(package: Path) -> dict[str, Any]:
    metrics: dict[str, Any] = json.loads((package.parent / "metrics.json").read_text(encoding="utf-8"))
    return metrics
