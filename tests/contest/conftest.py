"""Contenders are made of the tiny models that are evaluated."""

from tests.evaluation.conftest import causal_model, model

__all__ = ["causal_model", "model"]
