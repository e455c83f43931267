"""plots/finetune/<task>_validation.csv: a row for each validation pass."""

from dataclasses import dataclass


@dataclass(frozen=True)
class ScoredLook:
    """Score on the validation split of a task after `step` optimizer steps; higher is better."""

    step: int
    epoch: float
    validation_score: float
    """NaN: the score is undefined, such as the correlation with a constant."""
