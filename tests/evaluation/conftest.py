"""A tiny untrained model, and a split to measure it on."""

from pathlib import Path

import pytest

from clozeline.encoder.families import TokenIds
from clozeline.language_modelling import language_model
from clozeline.language_modelling.batches import Split
from clozeline.language_modelling.language_model import LanguageModel
from clozeline.params import PretrainParams
from clozeline.tokens.shards import TokenShards


@pytest.fixture
def model(tiny_pretraining: PretrainParams) -> LanguageModel:
    return language_model.build(
        tiny_pretraining.model, "mlm", TokenIds(64, pad_id=0, cls_id=2, sep_id=3), seed=3
    ).eval()


@pytest.fixture
def causal_model(tiny_pretraining: PretrainParams) -> LanguageModel:
    return language_model.build(
        tiny_pretraining.model, "clm", TokenIds(64, pad_id=0, cls_id=2, sep_id=3), seed=3
    ).eval()


@pytest.fixture
def split(tiny_tokens: Path) -> Split:
    return Split.open(TokenShards.open(tiny_tokens, "validation"), max_length=32)
