"""Which way a text gets its label without training."""

from clozeline.params import ZeroShotParams
from clozeline.tasks.task import Task, TaskInputs
from clozeline.tasks.zero_shot.cloze import Cloze
from clozeline.tasks.zero_shot.entailment import Entailment


def prepare_zero_shot(inputs: TaskInputs) -> Task:
    """Raises:
    DataError, ArtifactError, ParamsError: as `Cloze` and `Entailment`.
    """
    assert isinstance(inputs.params, ZeroShotParams)
    return Cloze(inputs) if inputs.params.entailment is None else Entailment(inputs)
