"""Batches for small models, by the fixtures of the encoder tests."""

from tests.encoder.conftest import batch_of, one_thread

__all__ = ["batch_of", "one_thread"]
