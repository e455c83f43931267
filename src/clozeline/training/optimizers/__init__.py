"""Optimizers: each kind is a row of OPTIMIZERS."""

from clozeline.training.optimizers.building import OPTIMIZERS, build_optimizer, scale_learning_rates

__all__ = ["OPTIMIZERS", "build_optimizer", "scale_learning_rates"]
