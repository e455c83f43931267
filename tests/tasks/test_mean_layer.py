"""Claim: a classifier on the first token reads the mean over all tokens by an added layer, also in stock classes."""

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional
from transformers import AutoModel, AutoModelForSequenceClassification, BertConfig, BertForMaskedLM

from clozeline.encoder.layers import mean_over_tokens
from clozeline.language import models
from clozeline.tasks import heads
from clozeline.tasks import heads as classifier
from clozeline.tasks.rows import EncodedBatch
from tests.make.models import small_bert

LABELS = ("x", "y", "z")
INPUT_IDS_BL = torch.tensor([[2, 10, 11, 12, 3], [2, 20, 3, 0, 0]])
MASK_BL = (INPUT_IDS_BL != 0).long()
BATCH = EncodedBatch(INPUT_IDS_BL, MASK_BL)


def bert_of(layers: int) -> BertConfig:
    config = small_bert()
    config.num_hidden_layers = layers
    return config


def test_the_head_of_bert_reads_the_mean_over_real_tokens(save_trained, tmp_path: Path) -> None:
    torch.manual_seed(0)
    encoder = save_trained(BertForMaskedLM(bert_of(2)))
    model = classifier.build_classifier(encoder, LABELS, 1)
    assert model.config.num_hidden_layers == 3
    with torch.inference_mode():
        hidden_BLH = AutoModel.from_pretrained(encoder).eval()(INPUT_IDS_BL, MASK_BL).last_hidden_state
        mean_BH = mean_over_tokens(hidden_BLH, MASK_BL)
        feature_BH = heads.features(model, BATCH)
    normed_BH = functional.layer_norm(10 * mean_BH + hidden_BLH[:, 0], mean_BH.shape[1:], eps=1e-12)
    torch.testing.assert_close(feature_BH, (0.1 * normed_BH).tanh(), rtol=0, atol=1e-4)


@pytest.mark.parametrize("family", ["bert", "roberta", "electra", "distilbert"])
def test_stock_classes_give_the_same_answers(family, params_of, ids, tiny_tokenizer, tmp_path: Path) -> None:
    encoder = models.build(params_of(family), "mlm", ids, seed=0).eval()
    (tmp_path / "encoder").mkdir()
    models.save(encoder, tiny_tokenizer, tmp_path / "encoder")
    model = classifier.build_classifier(tmp_path / "encoder", LABELS, 1)
    assert model.config.num_hidden_layers == encoder.config.num_hidden_layers + 1
    heads.save(model, tmp_path / "encoder", 48, tmp_path / "saved")
    stock = AutoModelForSequenceClassification.from_pretrained(tmp_path / "saved").eval()
    with torch.inference_mode():
        logits_BC = stock(INPUT_IDS_BL, MASK_BL).logits
        torch.testing.assert_close(classifier.class_logits(model, BATCH), logits_BC, rtol=0, atol=1e-5)


def test_every_matrix_of_the_layer_can_be_trained(save_trained) -> None:
    torch.manual_seed(0)
    model = classifier.build_classifier(save_trained(BertForMaskedLM(bert_of(1))), LABELS, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):  # some gradients start once another matrix is no longer 0
        optimizer.zero_grad()
        functional.cross_entropy(classifier.class_logits(model, BATCH), torch.tensor([0, 1])).backward()
        optimizer.step()
    matrices = [inner for inner in model.encoder.layers[-1].modules() if isinstance(inner, nn.Linear)]
    assert len(matrices) == 6
    assert all(inner.weight.grad is not None and inner.weight.grad.abs().max() > 0 for inner in matrices)


def test_a_mean_that_the_family_has_itself_needs_no_layer(small_encoder: Path) -> None:
    before = models.load(small_encoder).config.num_hidden_layers
    assert classifier.build_classifier(small_encoder, LABELS, 1).config.num_hidden_layers == before
