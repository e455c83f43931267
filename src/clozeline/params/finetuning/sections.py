"""Table of the kinds of task, as params.yaml knows them. Their behaviour is in clozeline/tasks/kinds.py."""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema

from clozeline.params.finetuning.classification import ClassificationParams
from clozeline.params.finetuning.question_answering import QuestionAnsweringParams
from clozeline.params.finetuning.shared import FinetuneParams
from clozeline.params.finetuning.similarity import SimilarityParams
from clozeline.params.finetuning.tagging import TaggingParams
from clozeline.params.finetuning.zero_shot import ZeroShotParams

SECTIONS: Mapping[str, type[FinetuneParams]] = {
    "classification": ClassificationParams,
    "tagging": TaggingParams,
    "question_answering": QuestionAnsweringParams,
    "similarity": SimilarityParams,
    "zero_shot": ZeroShotParams,
}
"""Section class of each `kind`."""


class _ByKind:
    """Validates a task as the class that its `kind` names: pydantic's discriminated union, for any set of classes."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        choices = {kind: handler.generate_schema(section) for kind, section in SECTIONS.items()}
        return core_schema.tagged_union_schema(choices, discriminator="kind")


AnyTask = Annotated[FinetuneParams, _ByKind()]
