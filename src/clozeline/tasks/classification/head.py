"""Encoder with a classification head.

Shapes: B rows, L longest row, C classes.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from torch import Tensor

from clozeline.tasks import heads
from clozeline.tasks.encoded import EncodedBatch
from clozeline.tasks.heads import TaskModel


def build(
    encoder: Path,
    labels: Sequence[str],
    seed: int,
    problem: Literal[
        "single_label_classification", "multi_label_classification", "regression"
    ] = "single_label_classification",
    family: str | None = None,
) -> TaskModel:
    """Return the encoder with a fresh head for `labels`; raises as `heads.build`."""
    changes: dict[str, object] = {
        "id2label": dict(enumerate(labels)),
        "label2id": {label: place for place, label in enumerate(labels)},
        # Masked language modelling never trains [CLS], so the mean over tokens summarizes a text better.
        "classifier_pooling": "mean",
    }
    if problem != "single_label_classification":  # which is the default of transformers
        changes["problem_type"] = problem
    return heads.build(encoder, "text-classification", seed, changes, family=family, reads_mean=True)


def class_logits(model: TaskModel, batch: EncodedBatch) -> Tensor:
    """Return `logits_BC`."""
    logits_BC: Tensor = model(**batch.inputs).logits
    return logits_BC
