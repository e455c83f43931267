"""Which of both sorts of similarity a task is."""

from clozeline.params import SimilarityParams
from clozeline.tasks.similarity.belonging import BelongingPairs
from clozeline.tasks.similarity.scored import ScoredPairs
from clozeline.tasks.task import Task, TaskInputs


def prepare_similarity(inputs: TaskInputs) -> Task:
    """Raises:
    DataError, ArtifactError, ParamsError: as `OnPairs`.
    """
    assert isinstance(inputs.params, SimilarityParams)
    return ScoredPairs(inputs) if inputs.params.score_field else BelongingPairs(inputs)
