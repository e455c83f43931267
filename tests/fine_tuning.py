"""The finetune stage, run on the files of a test."""

import json
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from clozeline.params.tasks import FinetuneParams
from clozeline.stages import finetune
from clozeline.tasks.classification.texts import SingleLabel
from tests.clean_text import write_clean_text


def fine_tune(
    params: FinetuneParams,
    out: Path,
    *,
    encoder: Path,
    data: Path,
    seed: int = 7,
    pretraining_texts: Sequence[str] = ("something else",),
    only_seed: int | None = None,
) -> Path:
    """Run the stage and return `out` with all its outputs. Its working files lie beside `out` for all runs."""
    seen = out.parent / "pretraining.parquet"
    write_clean_text(seen, pretraining_texts)
    finetune.run(
        params,
        seed=seed,
        task="small",
        encoder=encoder,
        data=data,
        pretraining_text=seen,
        out=out / "model",
        metrics=out / "metrics.json",
        curve=out / "training.csv",
        looks=out / "validation.csv",
        confusion=out / "confusion.csv",
        classes=out / "classes.csv",
        examples=out / "examples",
        work=out.parent / "work",
        only_seed=only_seed,
    )
    return out


def metrics_of(out: Path) -> dict[str, Any]:
    metrics: dict[str, Any] = json.loads((out / "metrics.json").read_text())
    return metrics


def contents(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def without_card(model: Path) -> dict[str, bytes]:
    """Return the files of a model except those about the test split: its card and its test items."""
    told_of_test = {"README.md", "test_items.jsonl"}
    return {name: content for name, content in contents(model).items() if name not in told_of_test}


def keep_last_weights(patch: pytest.MonkeyPatch) -> None:
    """Score each validation pass of a classifier better than the one before, so that the trained weights are kept."""
    patch.setattr(
        SingleLabel, "validation_score", lambda task: float(next(task.__dict__.setdefault("passes", count())))
    )
