"""Sections `finetune` and `finetune_defaults`: one entry for each task, and the defaults of tasks."""

from clozeline.params.finetuning.classification import ClassificationParams, LabelledParams
from clozeline.params.finetuning.question_answering import QuestionAnsweringParams
from clozeline.params.finetuning.sections import SECTIONS, AnyTask
from clozeline.params.finetuning.shared import FinetuneParams, HubParams, LoraParams, SplitsParams
from clozeline.params.finetuning.similarity import SimilarityParams
from clozeline.params.finetuning.tagging import TaggingParams
from clozeline.params.finetuning.zero_shot import ZeroShotParams

__all__ = [
    "SECTIONS",
    "AnyTask",
    "ClassificationParams",
    "FinetuneParams",
    "HubParams",
    "LabelledParams",
    "LoraParams",
    "QuestionAnsweringParams",
    "SimilarityParams",
    "SplitsParams",
    "TaggingParams",
    "ZeroShotParams",
]
