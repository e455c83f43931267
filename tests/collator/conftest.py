"""Tokenizers and rows that all tests of the collator share."""

import pytest
from transformers import PreTrainedTokenizerFast

from tests.collator.rows import Rows, byte_level_tokenizer, sentences, wordpiece_tokenizer


@pytest.fixture(scope="session")
def wordpiece() -> PreTrainedTokenizerFast:
    return wordpiece_tokenizer()


@pytest.fixture(scope="session")
def byte_level() -> PreTrainedTokenizerFast:
    return byte_level_tokenizer()


@pytest.fixture(scope="session")
def rows(wordpiece: PreTrainedTokenizerFast) -> Rows:
    return [{"input_ids": ids} for ids in wordpiece(sentences(400, 1))["input_ids"]]
