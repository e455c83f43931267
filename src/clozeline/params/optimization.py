"""Optimizer and learning rate, shared by `pretrain` and every task of `finetune`."""

from decimal import Decimal
from typing import Literal, Self

from clozeline.params.section import BelowOne, Fraction, NotNegative, Positive, Section, Share, set_for


class OptimizerParams(Section):
    kind: Literal["adamw", "muon", "novograd", "lamb", "stableadamw"]
    """The rows of clozeline/training/optimizers, which takes seconds to import."""
    learning_rate: Positive
    matrix_learning_rate: Positive | None
    """`muon` only: learning rate of the hidden matrices; `learning_rate` is then that of embeddings, norms and head."""
    beta1: BelowOne
    beta2: BelowOne
    epsilon: Positive
    weight_decay: NotNegative
    """Weight decay of matrices; norms and biases never decay."""
    clip_norm: Positive
    rules = (
        ("kind matrix_learning_rate", set_for("muon"), "set `matrix_learning_rate` for `muon`, null for any other"),
    )

    def times(self, factor: float) -> Self:
        """Return the same with `factor` times the learning rates, as people multiply them: 3 times 5e-05 is 0.00015."""
        matrix = self.matrix_learning_rate
        changed = {
            "learning_rate": _product(factor, self.learning_rate),
            "matrix_learning_rate": None if matrix is None else _product(factor, matrix),
        }
        return self.model_copy(update=changed)


def _product(factor: float, rate: float) -> float:
    """Return the product of both as they are written; in binary it would be 0.00015000000000000001."""
    return float(Decimal(str(factor)) * Decimal(str(rate)))


class ScheduleParams(Section):
    decay: Literal["cosine", "linear", "polynomial", "constant", "wsd"]
    """The rows of clozeline/training/schedule.py; wsd: warm-up, stable, decay (Hägele et al. 2024)."""
    warmup_fraction: Share
    """Share of the steps, at the beginning, over which the rate rises to its peak."""
    initial_fraction: BelowOne
    """Fraction of the learning rate at the start of the warm-up."""
    final_fraction: Share
    """Fraction of the learning rate at the last step."""
    power: Positive
    """`polynomial` only: the exponent."""
    decay_fraction: Fraction
    """`wsd` only: share of the budget, at its end, over which the rate falls."""
