"""Encoders of every family, as `pretrain` writes them."""

from collections.abc import Callable
from pathlib import Path

import pytest

from clozeline.encoder.families.layout import LanguageHead, TokenIds
from clozeline.language import models
from tests.make.models import ParamsMaker


@pytest.fixture
def encoder_of(params_of: ParamsMaker, ids: TokenIds, tiny_tokenizer: Path, tmp_path: Path) -> Callable[..., Path]:
    """`encoder_of(family, objective, **knobs)`: folder of a small encoder with random weights, always the same."""

    def make(family: str, objective: LanguageHead = "mlm", **knobs: object) -> Path:
        folder = tmp_path / "encoder"
        folder.mkdir()
        models.save(models.build(params_of(family, **knobs), objective, ids, seed=0), tiny_tokenizer, folder)
        return folder

    return make
