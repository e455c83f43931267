"""Tokenizers of the small language, for tests that read tokens back."""

from tests.tokenizing.conftest import batches, texts

__all__ = ["batches", "texts"]
