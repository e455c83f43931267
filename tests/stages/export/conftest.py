"""Arguments of the export stage."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from clozeline.params.delivery import ExportParams
from clozeline.params.reading import read_params
from tests.make.models import PROJECT

ExportModel = Callable[..., Path]


@pytest.fixture(scope="module")
def params() -> ExportParams:
    return read_params(PROJECT / "params.yaml").export


def metrics_of(package: Path) -> dict[str, Any]:
    metrics: dict[str, Any] = json.loads((package.parent / "metrics.json").read_text(encoding="utf-8"))
    return metrics
