"""Families for long texts, at their published lengths."""

import logging
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional
from transformers import AutoModelForMaskedLM, BigBirdForMaskedLM, RobertaConfig, RobertaModel

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


def test_longformer_equals_roberta_with_windowed_attention_on_4096_tokens(params_of, ids) -> None:
    """Its sliding chunks, against full attention under a mask of 64 tokens to each side."""
    model = long_model("longformer", params_of, ids)
    row_1L, position_L = one_row(4096).input_ids_BL, torch.arange(4096)
    roberta = RobertaModel(RobertaConfig(**model.config.to_dict()), add_pooling_layer=False).eval()
    report = roberta.load_state_dict(model.base_model.state_dict(), strict=False)
    assert not report.missing_keys
    assert all("_global." in key for key in report.unexpected_keys)
    window_11LL = ((position_L[:, None] - position_L).abs() <= 64)[None, None]
    with torch.inference_mode():
        expected_1LH = roberta(row_1L, attention_mask=window_11LL).last_hidden_state
        given_1LH = model.base_model(row_1L).last_hidden_state
    assert (given_1LH - expected_1LH).abs().max() <= 1e-4


def block_sparse(params_of, ids, folder: Path, tokenizer: Path) -> BigBirdForMaskedLM:
    """A BigBird trained here, opened in stock transformers with the attention that it is published with."""
    models.save(long_model("big_bird", params_of, ids), tokenizer, folder)
    model, report = BigBirdForMaskedLM.from_pretrained(
        folder, attention_type="block_sparse", local_files_only=True, output_loading_info=True
    )
    assert not report["missing_keys"]
    return model.eval()


def test_block_sparse_attention_of_transformers_depends_on_more_than_its_input(
    params_of, ids, tiny_tokenizer, tmp_path
) -> None:
    """It runs with the weights of a BigBird trained here, with full attention; its outputs are close, but not equal.
    Theirs looks elsewhere in training than in evaluation, sets numpy's random state, and stays full for good once it
    has met a short row.
    """
    sparse, row_1L = block_sparse(params_of, ids, tmp_path, tiny_tokenizer), one_row(4096).input_ids_BL
    assert sparse.base_model.attention_type == "block_sparse"
    sparse.config.hidden_dropout_prob = sparse.config.attention_probs_dropout_prob = 0.0
    random = np.random.get_state()[1]
    with torch.inference_mode():
        dense = models.load(tmp_path)(row_1L).logits
        evaluated, trained = sparse(row_1L).logits, sparse.train()(row_1L).logits
        sparse.eval()(row_1L[:, :16])
        after_a_short_row = sparse(row_1L).logits
    assert 1e-3 < (evaluated - dense).abs().mean() < math.inf
    assert (evaluated - trained).abs().max() > 1e-2
    assert (evaluated - after_a_short_row).abs().max() > 1e-2
    assert not np.array_equal(np.random.get_state()[1], random)


def test_resuming_a_block_sparse_checkpoint_uses_full_attention_with_a_warning(
    params_of, ids, tiny_tokenizer, tmp_path, caplog
) -> None:
    block_sparse(params_of, ids, tmp_path, tiny_tokenizer).save_pretrained(tmp_path)
    with caplog.at_level(logging.WARNING):
        model = started(str(tmp_path), params_of("modernbert"), "mlm", ids, seed=0, max_length=4096)
    assert "`attention_type` is set to `original_full`, not `block_sparse`" in caplog.text
    batch = one_row(4096)
    with torch.inference_mode():
        before = models.target_logits(model.eval(), batch)
        models.target_logits(model, one_row(64))
        assert torch.equal(models.target_logits(model, batch), before)
