from pathlib import Path

import pytest

from clozeline.inference.latency import Latency
from clozeline.orchestration.release import faster
from clozeline.params.reading import read_params
from clozeline.records.package import read_manifest

PROJECT = Path(__file__).parents[2]


@pytest.mark.parametrize(("speedup", "precision"), [(0.93, "fp32"), (0.99, "fp32"), (1.0, "int8"), (1.4, "int8")])
def test_by_default_int8_is_served_only_if_it_is_not_slower(
    encoder_package: Path, speedup: float, precision: str
) -> None:
    measured = Latency(1.0, 1 / speedup, 10.0, 10.0 / speedup, batch_texts=32, num_threads=1)
    release = read_params(PROJECT / "params.yaml").release
    assert faster(read_manifest(encoder_package), measured, release.min_int8_speedup) == precision
