"""Tokenizers of the small language, for tests that read tokens back."""

from tests.tokenizing.conftest import partitions, texts

__all__ = ["partitions", "texts"]
