"""A tiny pre-training to be run, by the fixture of the training tests."""

from tests.training.conftest import prepare

__all__ = ["prepare"]
