"""A tiny pre-training to be run, as for the loop under it."""

from tests.training.conftest import prepare

__all__ = ["prepare"]
