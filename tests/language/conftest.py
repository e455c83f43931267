"""Tokenizers of the small language, for tests that read tokens back, and batches for small models."""

from tests.encoder.conftest import batch_of, one_thread
from tests.tokenizing.conftest import partitions, texts

__all__ = ["batch_of", "one_thread", "partitions", "texts"]
