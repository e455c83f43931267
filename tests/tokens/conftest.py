"""Tokens are read back as a tokenizer of the small language wrote them."""

from tests.tokenizing.conftest import batches, texts

__all__ = ["batches", "texts"]
