"""Tokenizers of the small language, as the stage trains them."""

from tests.tokenizing.conftest import batches, params, texts

__all__ = ["batches", "params", "texts"]
