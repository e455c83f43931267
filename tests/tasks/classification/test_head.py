"""Claim: a classifier is the pre-trained encoder under a head made from the seed, and stock classes load it."""

from pathlib import Path

import pytest
import torch
from torch.nn import functional
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from clozeline.encoder.families import FAMILIES
from clozeline.language import models
from clozeline.system.errors import ArtifactError, ParamsError
from clozeline.tasks import heads
from clozeline.tasks import heads as classifier
from clozeline.tasks.rows import EncodedBatch

LABELS = ("x", "y", "z")
INPUT_IDS_BL = torch.tensor([[2, 10, 11, 12, 3], [2, 20, 3, 0, 0]])
MASK_BL = (INPUT_IDS_BL != 0).long()


def batch(rows: slice, length: int = 5, *, masked: bool = True) -> EncodedBatch:
    input_ids_BL = INPUT_IDS_BL[rows, :length]
    mask_BL = MASK_BL[rows, :length] if masked else None
    return EncodedBatch(input_ids_BL, mask_BL)


def test_the_encoders_weights_are_kept_and_the_head_follows_the_seed(small_encoder: Path) -> None:
    encoder = models.load(small_encoder)
    one, same, other = (classifier.build_classifier(small_encoder, LABELS, seed) for seed in (1, 1, 2))
    for name, weight in encoder.base_model.state_dict().items():
        assert torch.equal(weight, one.base_model.state_dict()[name]), name
    assert torch.equal(one.head.output.weight, same.head.output.weight)
    assert not torch.equal(one.head.output.weight, other.head.output.weight)
    assert one.head.output.weight.shape == (3, 32)


@pytest.mark.parametrize("family", FAMILIES)
def test_an_encoder_of_any_family_can_be_a_discriminator(
    family, params_of, ids, tiny_tokenizer, tmp_path: Path
) -> None:
    """Logits have the expected shape, and padding changes no answer."""
    encoder = models.build(params_of(family), "mlm", ids, seed=0).eval()
    folder = tmp_path / "encoder"
    folder.mkdir()
    models.save(encoder, tiny_tokenizer, folder)
    model = classifier.build_classifier(folder, LABELS, 1).eval()
    weights = model.base_model.state_dict()
    assert all(torch.equal(weights[name], weight) for name, weight in encoder.base_model.state_dict().items())
    with torch.inference_mode():
        together = classifier.class_logits(model, batch(slice(0, 2)))
        second = classifier.class_logits(model, batch(slice(1, 2), length=3, masked=False))
    assert together.shape == (2, 3)
    torch.testing.assert_close(together[1:], second, rtol=0, atol=1e-5)
    heads.check_fit(model, folder, vocab_size=64, max_length=64, pad_id=0)
    with pytest.raises(ParamsError, match="the 64 tokens"):
        heads.check_fit(model, folder, vocab_size=64, max_length=65, pad_id=0)


def test_the_global_random_state_stays_unchanged(small_encoder: Path) -> None:
    before = torch.get_rng_state()
    classifier.build_classifier(small_encoder, LABELS, 1)
    assert torch.equal(before, torch.get_rng_state())


def test_padding_and_other_rows_change_no_answer(small_encoder: Path) -> None:
    model = classifier.build_classifier(small_encoder, LABELS, 1).eval()
    with torch.inference_mode():
        together = classifier.class_logits(model, batch(slice(0, 2)))
        first = classifier.class_logits(model, batch(slice(0, 1), masked=False))
        second = classifier.class_logits(model, batch(slice(1, 2), length=3, masked=False))
    torch.testing.assert_close(together, torch.cat([first, second]), rtol=0, atol=1e-5)


def test_stock_classes_load_the_saved_model_and_give_the_same_answers(small_encoder: Path, tmp_path: Path) -> None:
    model = classifier.build_classifier(small_encoder, LABELS, 1).eval()
    heads.save(model, small_encoder, 48, tmp_path)
    stock = AutoModelForSequenceClassification.from_pretrained(tmp_path).eval()
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    assert stock.config.id2label == {0: "x", 1: "y", 2: "z"}
    assert stock.config.label2id == {"x": 0, "y": 1, "z": 2}
    assert tokenizer.model_max_length == 48
    with torch.inference_mode():
        inputs = tokenizer(["the model reads a file"], return_tensors="pt")
        ours = classifier.class_logits(model, EncodedBatch(inputs["input_ids"], None))
        torch.testing.assert_close(stock(**inputs).logits, ours, rtol=0, atol=1e-6)


def test_rows_longer_than_the_encoder_reads_are_refused(small_encoder: Path) -> None:
    model = classifier.build_classifier(small_encoder, LABELS, 1)
    heads.check_fit(model, small_encoder, vocab_size=90, max_length=64, pad_id=0)
    with pytest.raises(ParamsError, match=r"`max_length: 65`.* 64 tokens"):
        heads.check_fit(model, small_encoder, vocab_size=90, max_length=65, pad_id=0)


def test_the_tokenizer_of_a_larger_model_is_refused(small_encoder: Path) -> None:
    model = classifier.build_classifier(small_encoder, LABELS, 1)
    with pytest.raises(ArtifactError, match="91 tokens"):
        heads.check_fit(model, small_encoder, vocab_size=91, max_length=64, pad_id=0)


def test_a_folder_without_a_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match=str(tmp_path)):
        classifier.build_classifier(tmp_path, LABELS, 1)


@pytest.mark.parametrize("attention_dropout", [0.1, 0.0])
def test_attention_is_fused_unless_it_uses_dropout(
    attention_dropout: float, params_of, ids, tiny_tokenizer, tmp_path: Path, monkeypatch
) -> None:
    encoder = models.build(params_of("bert", attention_dropout=attention_dropout), "mlm", ids, seed=0).eval()
    models.save(encoder, tiny_tokenizer, tmp_path)
    model = classifier.build_classifier(tmp_path, LABELS, 1)
    fused = functional.scaled_dot_product_attention
    calls = []
    monkeypatch.setattr(functional, "scaled_dot_product_attention", lambda *a, **k: calls.append(k) or fused(*a, **k))
    model.train()(INPUT_IDS_BL)
    assert len(calls) == (0 if attention_dropout else 3)
    model.eval()(INPUT_IDS_BL)
    assert len(calls) == (3 if attention_dropout else 6)
    heads.save(model, tmp_path, 64, tmp_path / "out")
    stock = AutoModelForSequenceClassification.from_pretrained(tmp_path / "out", attn_implementation="sdpa").eval()
    with torch.inference_mode():
        own, fused = (each(INPUT_IDS_BL, attention_mask=MASK_BL).logits for each in (model, stock))
    torch.testing.assert_close(own, fused, rtol=0, atol=1e-6)
