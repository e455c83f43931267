"""Families for long texts, at their published lengths."""

import logging

import pytest
import torch
from torch.nn import functional
from transformers import AutoModelForMaskedLM, BigBirdForMaskedLM

from clozeline.encoder.architecture import longest_row_of
from clozeline.encoder.checkpoints import StockModel
from clozeline.encoder.model import EncoderModel
from clozeline.language import models
from clozeline.language.objectives import TargetBatch
from tests.make.models import started

LENGTHS = {"modernbert": 8192, "longformer": 4096, "big_bird": 4096}

pytestmark = pytest.mark.slow


def long_model(family: str, params_of, ids) -> EncoderModel | StockModel:
    """Model whose attention prefers some tokens, as after training, so that a wrong mask changes the output."""
    length = LENGTHS[family]
    params = params_of(family, max_position_embeddings=length, num_attention_heads=1, num_hidden_layers=3)
    model = models.build(params, "mlm", ids, seed=0).eval()
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 2:
                parameter += torch.randn_like(parameter) * 0.15
    return model


def one_row(length: int) -> TargetBatch:
    """A text, and an eighth of its tokens as targets."""
    random = torch.Generator().manual_seed(0)
    input_ids_1L = torch.randint(5, 64, (1, length), generator=random)
    slot_T = torch.randperm(length, generator=random)[: length // 8].sort().values
    labels_T = input_ids_1L[0, slot_T]
    return TargetBatch(input_ids_1L.index_fill(1, slot_T, 4), None, slot_T, labels_T)


@pytest.mark.parametrize("family", LENGTHS)
def test_a_step_on_the_longest_row_has_the_loss_and_the_gradients_of_the_stock_model(
    family, params_of, ids, tmp_path
) -> None:
    model, batch = long_model(family, params_of, ids), one_row(LENGTHS[family])
    assert longest_row_of(model.config) == LENGTHS[family]
    loss = functional.cross_entropy(models.target_logits(model, batch), batch.labels_T)
    loss.backward()
    labels_1L = torch.full_like(batch.input_ids_BL, -100)
    labels_1L[0, batch.slot_T] = batch.labels_T
    model.save(tmp_path)
    stock = AutoModelForMaskedLM.from_pretrained(tmp_path, local_files_only=True)
    given = stock(batch.input_ids_BL, attention_mask=torch.ones_like(batch.input_ids_BL), labels=labels_1L)
    given.loss.backward()
    assert loss.item() == pytest.approx(given.loss.item(), abs=1e-5)
    ours = {published_name(model, name): it.grad for name, it in model.named_parameters() if it.grad is not None}
    theirs = {name: it.grad for name, it in stock.named_parameters() if it.grad is not None}
    assert set(ours) == set(theirs)
    largest = max(gradient.abs().max() for gradient in theirs.values())
    assert max((ours[name] - theirs[name]).abs().max() for name in theirs) <= 1e-4 * largest


def published_name(model: EncoderModel | StockModel, name: str) -> str:
    if isinstance(model, StockModel):
        return name.removeprefix("stock.")
    return model.layout.published([name], model.config, model.kind)[name]


def test_resuming_a_block_sparse_checkpoint_uses_full_attention_with_a_warning(
    params_of, ids, tiny_tokenizer, tmp_path, caplog
) -> None:
    """transformers' block-sparse attention depends on more than its input: it changes for good when it meets a short
    row.
    """
    models.save(long_model("big_bird", params_of, ids), tiny_tokenizer, tmp_path)
    sparse = BigBirdForMaskedLM.from_pretrained(tmp_path, attention_type="block_sparse", local_files_only=True)
    sparse.save_pretrained(tmp_path)
    with caplog.at_level(logging.WARNING):
        model = started(str(tmp_path), params_of("modernbert"), "mlm", ids, seed=0, max_length=4096)
    assert "`attention_type` is set to `original_full`, not `block_sparse`" in caplog.text
    batch = one_row(4096)
    with torch.inference_mode():
        before = models.target_logits(model.eval(), batch)
        models.target_logits(model, one_row(64))
        assert torch.equal(models.target_logits(model, batch), before)
