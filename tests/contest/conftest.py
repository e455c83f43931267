"""Contenders are made from the tiny models of the evaluation tests."""

from tests.evaluation.conftest import causal_model, model

__all__ = ["causal_model", "model"]
