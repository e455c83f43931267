"""Reader of params.yaml: types and bounds of every knob. Defaults are in the file only."""

from clozeline.params.data import ContractParams, PreprocessParams, SourceParams, TokenizeParams
from clozeline.params.delivery import ExportGates, ExportParams, ReleaseParams, RungParams
from clozeline.params.finetuning import (
    ClassificationParams,
    FinetuneParams,
    LabelledParams,
    QuestionAnsweringParams,
    SimilarityParams,
    TaggingParams,
    ZeroShotParams,
)
from clozeline.params.model import FAMILY_NAMES, SIZE_NAMES, ModelParams
from clozeline.params.optimization import OptimizerParams, ScheduleParams
from clozeline.params.pretraining import (
    FROM_CHAMPION,
    EvaluateParams,
    MaskingParams,
    Objective,
    PretrainParams,
    ValidationParams,
    WordDropoutParams,
)
from clozeline.params.project import Params
from clozeline.params.published import ImportParams
from clozeline.params.reading import read_params, where_set

__all__ = [
    "FAMILY_NAMES",
    "FROM_CHAMPION",
    "SIZE_NAMES",
    "ClassificationParams",
    "ContractParams",
    "EvaluateParams",
    "ExportGates",
    "ExportParams",
    "FinetuneParams",
    "ImportParams",
    "LabelledParams",
    "MaskingParams",
    "ModelParams",
    "Objective",
    "OptimizerParams",
    "Params",
    "PreprocessParams",
    "PretrainParams",
    "QuestionAnsweringParams",
    "ReleaseParams",
    "RungParams",
    "ScheduleParams",
    "SimilarityParams",
    "SourceParams",
    "TaggingParams",
    "TokenizeParams",
    "ValidationParams",
    "WordDropoutParams",
    "ZeroShotParams",
    "read_params",
    "where_set",
]
