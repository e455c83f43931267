from pathlib import Path

import pytest

from clozeline.language.objectives import Split, token_counts
from clozeline.language.shards import TokenShards


@pytest.mark.parametrize("chunk_tokens", [7, 1 << 18])
def test_each_token_is_counted_once(tiny_tokens: Path, monkeypatch: pytest.MonkeyPatch, chunk_tokens: int) -> None:
    monkeypatch.setattr("clozeline.language.objectives._CHUNK_TOKENS", chunk_tokens)
    split = Split.open(TokenShards.open(tiny_tokens, "train"), max_length=32)
    assert token_counts(split.shards, split.vocabulary).sum() == split.shards.num_tokens
