"""plots/finetune/<task>.csv, the model's answer to each test item, and <task>_classes.csv, the figures of each class.

The second file has `class` and the columns of its kind of task.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class AnswerRow:
    """Right and predicted answer to a test item."""

    actual: str
    predicted: str


CLASS = "class"
"""Column of the second file: a label, an entity type or a group of items."""
