"""Classification: which of its two forms a task is."""

from clozeline.params import ClassificationParams
from clozeline.tasks.classification.multi_label import MultiLabel
from clozeline.tasks.classification.single_label import SingleLabel
from clozeline.tasks.task import Task, TaskInputs


def prepare_classification(inputs: TaskInputs) -> Task:
    """Raises: as `ClassifierOnTexts`."""
    assert isinstance(inputs.params, ClassificationParams)
    return MultiLabel(inputs) if inputs.params.multi_label else SingleLabel(inputs)
