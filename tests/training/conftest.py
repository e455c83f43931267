"""A tiny pre-training to be run."""

from pathlib import Path

import pytest

from clozeline.params.pretraining import PretrainParams
from tests.training.prepared import Prepare


@pytest.fixture
def prepare(tiny_tokens: Path, tiny_tokenizer: Path, tiny_pretraining: PretrainParams, tmp_path: Path) -> Prepare:
    return Prepare(tiny_tokens, tiny_tokenizer, tiny_pretraining, tmp_path)
