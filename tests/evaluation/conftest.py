"""A tiny untrained model, and a split to measure it on."""

from pathlib import Path

import pytest

from clozeline.encoder.families.layout import TokenIds
from clozeline.language import models
from clozeline.language.models import LanguageModel
from clozeline.language.objectives import Split
from clozeline.language.shards import TokenShards
from clozeline.params.pretraining import PretrainParams


@pytest.fixture
def model(tiny_pretraining: PretrainParams) -> LanguageModel:
    return models.build(tiny_pretraining.model, "mlm", TokenIds(64, pad_id=0, cls_id=2, sep_id=3), seed=3).eval()


@pytest.fixture
def causal_model(tiny_pretraining: PretrainParams) -> LanguageModel:
    return models.build(tiny_pretraining.model, "clm", TokenIds(64, pad_id=0, cls_id=2, sep_id=3), seed=3).eval()


@pytest.fixture
def split(tiny_tokens: Path) -> Split:
    return Split.open(TokenShards.open(tiny_tokens, "validation"), max_length=32)
