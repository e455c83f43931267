"""plots/finetune/<task>.csv and <task>_classes.csv: what a task's model says to each test item, and how good each class
is; the second has the kind's own columns beside `class`.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class AnswerRow:
    """A test item: what is right, and what the model says."""

    actual: str
    predicted: str


CLASS = "class"
"""Column of the second file: the label, entity type, or group of items."""
