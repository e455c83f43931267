"""The tables of a task in plots/finetune.

<task>_validation.csv has a row for each validation pass, <task>.csv the model's answer to each test item, and
<task>_classes.csv the figures of each class: `class` and the columns of its kind of task.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class ScoredLook:
    """Score on the validation split of a task after `step` optimizer steps; higher is better."""

    step: int
    epoch: float
    validation_score: float
    """NaN: the score is undefined, such as the correlation with a constant."""


@dataclass(frozen=True)
class AnswerRow:
    """Right and predicted answer to a test item."""

    actual: str
    predicted: str


CLASS = "class"
"""Column of <task>_classes.csv: a label, an entity type or a group of items."""
