"""Fixtures for all tests of the stage."""

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.make.tasks import fine_tune
from tests.stages.finetune.topics import Finetune, params, topic_records


@pytest.fixture
def run(small_encoder: Path, tmp_path: Path) -> Finetune:
    """`run(name, **changes)` runs the stage and returns its output folder."""
    records = topic_records(150)
    pq.write_table(pa.Table.from_pylist(records), tmp_path / "data.parquet")

    def run(
        name: str,
        *,
        encoder: Path = small_encoder,
        seed: int = 7,
        pretraining_texts: Sequence[str] = ("something else",),
        only_seed: int | None = None,
        **changes: object,
    ) -> Path:
        return fine_tune(
            params(**changes),
            tmp_path / name,
            encoder=encoder,
            data=tmp_path / "data.parquet",
            seed=seed,
            pretraining_texts=pretraining_texts,
            only_seed=only_seed,
        )

    return run
