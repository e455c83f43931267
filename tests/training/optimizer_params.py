"""Params of any optimizer, for the tests of its formula and of its effect on a model."""

from clozeline.params.model import OptimizerParams
from clozeline.training.optimizers import OPTIMIZERS

KINDS = sorted(OPTIMIZERS)
LEARNING_RATE, MATRIX_LEARNING_RATE, BETA1, BETA2, EPSILON, DECAY = 0.01, 0.02, 0.9, 0.98, 1e-6, 0.1


def params_of(kind: str, **values: float) -> OptimizerParams:
    given = {
        "learning_rate": LEARNING_RATE,
        "beta1": BETA1,
        "beta2": BETA2,
        "epsilon": EPSILON,
        "weight_decay": DECAY,
        "clip_norm": 1.0,
        **values,
    }
    matrix_learning_rate = MATRIX_LEARNING_RATE if kind == "muon" else None
    return OptimizerParams(kind=kind, matrix_learning_rate=matrix_learning_rate, **given)
