"""The model of a task keeps the weights of the trained encoder: none of them is initialized again."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn import functional
from transformers import AutoModel, AutoModelForSequenceClassification, AutoTokenizer

from clozeline.encoder.families import FAMILIES
from clozeline.encoder.families.layout import HeadKind
from clozeline.encoder.layers import mean_over_tokens
from clozeline.language import models
from clozeline.system.errors import ArtifactError, ParamsError
from clozeline.tasks import heads
from clozeline.tasks.rows import EncodedBatch
from tests.make.models import small_bert, with_random_weights

KINDS: tuple[HeadKind, ...] = ("feature-extraction", "token-classification", "question-answering")
LABELS = ("x", "y", "z")
INPUT_IDS_BL = torch.tensor([[2, 10, 11, 12, 3], [2, 20, 3, 0, 0]])
MASK_BL = (INPUT_IDS_BL != 0).long()
BATCH = EncodedBatch(INPUT_IDS_BL, MASK_BL)
SECOND_ALONE = EncodedBatch(INPUT_IDS_BL[1:, :3], None)
EncoderOf = Callable[..., Path]


@pytest.mark.parametrize("family", FAMILIES)
def test_heads_keep_the_encoder_of_any_family_and_padding_changes_no_answer(family: str, encoder_of: EncoderOf) -> None:
    folder = encoder_of(family)
    encoder = models.load(folder).eval()
    model = heads.build_classifier(folder, LABELS, 1)
    weights = model.base_model.state_dict()
    assert all(torch.equal(weights[name], weight) for name, weight in encoder.base_model.state_dict().items())
    with torch.inference_mode():
        together, alone = heads.logits(model, BATCH), heads.logits(model, SECOND_ALONE)
        assert together.shape == (2, 3)
        torch.testing.assert_close(together[1:], alone, rtol=0, atol=1e-5)
        row_BL = torch.arange(5, 25).view(2, 10)
        hidden_BLH = encoder.base_model(row_BL).last_hidden_state
        for kind in KINDS if family not in {"longformer", "big_bird"} else ():
            after_BLH = heads.build(folder, kind, 0, {}).base_model(row_BL).last_hidden_state
            torch.testing.assert_close(after_BLH, hidden_BLH, rtol=0, atol=1e-6)
    heads.check_fit(model, folder, vocab_size=64, max_length=64, pad_id=0)
    with pytest.raises(ParamsError, match=r"`max_length: 65`.* 64 tokens"):
        heads.check_fit(model, folder, vocab_size=64, max_length=65, pad_id=0)


def test_a_damaged_encoder_and_the_tokenizer_of_another_model_are_refused(encoder_of: EncoderOf) -> None:
    folder = encoder_of("bert")
    model = heads.build_classifier(folder, LABELS, 1)
    for sizes, told in (({"vocab_size": 65}, "65 tokens"), ({"pad_id": 1}, "pads with token 1")):
        with pytest.raises(ArtifactError, match=told):
            heads.check_fit(model, folder, **{"vocab_size": 64, "max_length": 64, "pad_id": 0, **sizes})
    weights = load_file(folder / "model.safetensors")
    del weights["bert.encoder.layer.1.output.dense.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ArtifactError, match=rf"(?s){folder}.*encoder\.layer\.1\.output\.dense\.weight"):
        heads.build(folder, "text-classification", 0, {})
    (folder / "config.json").unlink()
    with pytest.raises(ArtifactError, match=rf"(?s){folder}.*holds no model"):
        heads.build(folder, "text-classification", 0, {})


def test_a_causal_encoder_whose_head_would_read_the_first_token_is_refused_and_modernbert_reads_the_last(
    encoder_of: EncoderOf,
) -> None:
    """The first token sees no other, so every text would get the same label."""
    folder = encoder_of("bert", "clm")
    with pytest.raises(ArtifactError, match=r"(?s)causal.*family modernbert"):
        heads.build(folder, "text-classification", 0, {})
    heads.build(folder, "feature-extraction", 0, {})
    shutil.rmtree(folder)
    model = heads.build(encoder_of("modernbert", "clm"), "text-classification", 0, {"id2label": {0: "a", 1: "b"}})
    with torch.inference_mode():
        text, other = (model(torch.tensor([[2, 10, 11, last, 3]])).logits for last in (12, 20))
    assert not torch.equal(text, other)


@pytest.mark.parametrize(
    ("family", "num_added"), [("bert", 1), ("roberta", 1), ("electra", 1), ("distilbert", 1), ("modernbert", 0)]
)
def test_stock_classes_give_the_same_answers_with_or_without_a_layer_for_the_mean(
    family: str, num_added: int, encoder_of: EncoderOf, tmp_path: Path
) -> None:
    encoder = encoder_of(family)
    model = heads.build_classifier(encoder, LABELS, 1)
    assert model.config.num_hidden_layers == models.load(encoder).config.num_hidden_layers + num_added
    heads.save(model, encoder, 48, tmp_path / "saved")
    stock = AutoModelForSequenceClassification.from_pretrained(tmp_path / "saved").eval()
    with torch.inference_mode():
        torch.testing.assert_close(heads.logits(model, BATCH), stock(**BATCH.inputs).logits, rtol=0, atol=1e-5)
    assert stock.config.id2label == dict(enumerate(LABELS))
    assert stock.config.label2id == {"x": 0, "y": 1, "z": 2}
    assert AutoTokenizer.from_pretrained(tmp_path / "saved").model_max_length == 48


def test_the_head_of_bert_reads_the_mean_over_real_tokens(save_trained: Callable[[Any], Path]) -> None:
    encoder = save_trained(with_random_weights("BertForMaskedLM", small_bert()))
    model = heads.build_classifier(encoder, LABELS, 1)
    with torch.inference_mode():
        hidden_BLH = AutoModel.from_pretrained(encoder).eval()(INPUT_IDS_BL, MASK_BL).last_hidden_state
        mean_BH = mean_over_tokens(hidden_BLH, MASK_BL)
        feature_BH = heads.features(model, BATCH)
    normed_BH = functional.layer_norm(10 * mean_BH + hidden_BLH[:, 0], mean_BH.shape[1:], eps=1e-12)
    torch.testing.assert_close(feature_BH, (0.1 * normed_BH).tanh(), rtol=0, atol=1e-4)


def test_every_matrix_of_the_layer_for_the_mean_can_be_trained(encoder_of: EncoderOf) -> None:
    model = heads.build_classifier(encoder_of("bert"), LABELS, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):  # some gradients start once another matrix is no longer 0
        optimizer.zero_grad()
        functional.cross_entropy(heads.logits(model, BATCH), torch.tensor([0, 1])).backward()
        optimizer.step()
    matrices = [inner for inner in model.encoder.layers[-1].modules() if isinstance(inner, nn.Linear)]
    assert len(matrices) == 6
    assert all(inner.weight.grad is not None and inner.weight.grad.abs().max() > 0 for inner in matrices)
