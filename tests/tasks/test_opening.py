"""Claim: a tokenizer that is not the model's, and rows that it cannot read, are refused before any training."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import ModernBertForMaskedLM

from clozeline.params.reading import read_params
from clozeline.params.tasks import SECTIONS, SimilarityParams, whole_task
from clozeline.system.errors import ArtifactError, ParamsError, TrainingError
from clozeline.tasks import heads as embedder
from clozeline.tasks.rows import EncodedBatch
from clozeline.tasks.task import TaskInputs, answers, opened_for
from tests.make.models import small_modernbert
from tests.make.params import is_knob_of, named_in

DEFAULTS = read_params(Path(__file__).parents[2] / "params.yaml").finetune_defaults


def inputs_of(encoder: Path, max_length: int = 64) -> TaskInputs:
    given = {"kind": "similarity", "data": "x", "max_length": max_length}
    return TaskInputs(SimilarityParams.model_validate(whole_task(given, DEFAULTS)), 1, encoder, encoder, encoder)


def test_the_tokenizer_of_the_encoder_is_opened(small_encoder: Path) -> None:
    opened = opened_for(embedder.build_embedder(small_encoder, 1), inputs_of(small_encoder))
    assert opened.tokenizer.encode("the model").ids[0] == opened.special_ids.cls


def test_the_tokenizer_of_another_model_is_refused(save_trained: Callable[[Any], Path]) -> None:
    config = small_modernbert()
    config.vocab_size = 20
    other = save_trained(ModernBertForMaskedLM(config))
    with pytest.raises(ArtifactError, match="the tokenizer has 85 tokens, the embedding only 20"):
        opened_for(embedder.build_embedder(other, 1), inputs_of(other))


def test_rows_longer_than_the_encoder_reads_are_refused(small_encoder: Path) -> None:
    with pytest.raises(ParamsError, match="`max_length: 65`"):
        opened_for(embedder.build_embedder(small_encoder, 1), inputs_of(small_encoder, max_length=65))


def asked_for(most_rows: int, num_rows: int, model: Any) -> list[list[int]]:
    """Return the rows of each batch that was answered, where memory holds at most `most_rows` rows."""

    def answer(_: Any, batch: EncodedBatch) -> torch.Tensor:
        if batch.num_rows > most_rows:
            torch.empty(1 << 50)
        return batch.input_ids_BL[:, 0]

    def encoded(rows_B: np.ndarray) -> EncodedBatch:
        return EncodedBatch(torch.from_numpy(rows_B)[:, None], None)

    batches = [np.arange(start, min(start + 8, num_rows)) for start in range(0, num_rows, 8)]
    found = list(answers(model, batches, encoded, answer))
    assert all(rows_B.tolist() == told_B.tolist() for rows_B, told_B in found)
    return [rows_B.tolist() for rows_B, _ in found]


def test_a_batch_too_large_for_memory_and_all_later_ones_are_evaluated_in_parts(
    small_encoder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = embedder.build_embedder(small_encoder, 1)
    assert asked_for(8, 19, model) == [[*range(8)], [*range(8, 16)], [16, 17, 18]]
    assert caplog.text == ""
    in_parts = asked_for(3, 19, model)
    assert [row for rows in in_parts for row in rows] == [*range(19)]
    assert max(map(len, in_parts)) == 2
    assert caplog.text.count("out of memory") == 2, "halved once, then never tried again"
    with pytest.raises(TrainingError, match="out of memory on one row") as caught:
        asked_for(0, 19, model)
    assert "4,503,599,627,370,496 bytes were requested" in str(caught.value)
    named = named_in(str(caught.value))
    assert named == ["max_length"]
    assert all(is_knob_of(section, knob) for knob in named for section in SECTIONS.values())
