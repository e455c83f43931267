"""Which exam the models of a task sit."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from clozeline.artifacts.manifest import Task
from clozeline.exporting.exams.exam import Exam
from clozeline.exporting.exams.of_encoders import masks_exam
from clozeline.exporting.exams.of_labels import labels_exam
from clozeline.exporting.exams.of_pairs import similarity_exam
from clozeline.exporting.exams.of_tokens import answers_exam, tags_exam
from clozeline.exporting.sample import Sample
from clozeline.inference.open_model import OpenModel

_EXAMS: Mapping[Task, Callable[[OpenModel, Sample], Exam]] = MappingProxyType(
    {
        "fill-mask": masks_exam,
        "feature-extraction": similarity_exam,
        "text-classification": labels_exam,
        "token-classification": tags_exam,
        "question-answering": answers_exam,
    }
)


def exam_of(model: OpenModel, sample: Sample) -> Exam:
    """What `model` can be asked.

    Raises:
        DataError: nothing, for no text has a token.
    """
    return _EXAMS[model.manifest.task](model, sample)
