"""Tokenizers of the small language, as the stage trains them."""

from tests.tokenizing.conftest import params, partitions, texts

__all__ = ["params", "partitions", "texts"]
