"""Batches for small models, as for the encoder under them."""

from tests.encoder.conftest import batch_of, one_thread

__all__ = ["batch_of", "one_thread"]
