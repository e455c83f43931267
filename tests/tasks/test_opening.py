"""Claim: a tokenizer that is not the model's, and rows that it cannot read, are refused before any training."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from transformers import ModernBertForMaskedLM

from clozeline.errors import ArtifactError, ParamsError
from clozeline.model import embedder
from clozeline.params import SimilarityParams, read_params
from clozeline.params.finetuning.layers import whole_task
from clozeline.tasks.opening import opened_for
from clozeline.tasks.task import TaskInputs
from tests.tiny_models import small_modernbert

DEFAULTS = read_params(Path(__file__).parents[2] / "params.yaml").finetune_defaults


def inputs_of(encoder: Path, max_length: int = 64) -> TaskInputs:
    given = {"kind": "similarity", "data": "x", "max_length": max_length}
    return TaskInputs(SimilarityParams.model_validate(whole_task("t", given, DEFAULTS)), 1, encoder, encoder, encoder)


def test_the_encoders_own_tokenizer_is_opened(small_encoder: Path) -> None:
    opened = opened_for(embedder.build(small_encoder, 1), inputs_of(small_encoder))
    assert opened.tokenizer.encode("the model").ids[0] == opened.special_ids.cls


def test_the_tokenizer_of_another_model_is_refused(save_trained: Callable[[Any], Path]) -> None:
    config = small_modernbert()
    config.vocab_size = 20
    other = save_trained(ModernBertForMaskedLM(config))
    with pytest.raises(ArtifactError, match="tokenizer of another model"):
        opened_for(embedder.build(other, 1), inputs_of(other))


def test_rows_longer_than_the_encoder_reads_are_refused(small_encoder: Path) -> None:
    with pytest.raises(ParamsError, match="longer than the encoder can read"):
        opened_for(embedder.build(small_encoder, 1), inputs_of(small_encoder, max_length=65))
