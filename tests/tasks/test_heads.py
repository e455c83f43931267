"""The model of a task keeps the weights of the trained encoder: none of them is initialized again."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn import functional
from transformers import AutoModel, AutoModelForSequenceClassification, AutoTokenizer, BertConfig, BertForMaskedLM

from clozeline.encoder.families import FAMILIES
from clozeline.encoder.families.layout import HeadKind, TokenIds
from clozeline.encoder.layers import mean_of_tokens, mean_over_tokens
from clozeline.language import models
from clozeline.system.errors import ArtifactError, ParamsError
from clozeline.tasks import heads
from clozeline.tasks import heads as classifier
from clozeline.tasks.rows import EncodedBatch
from tests.make.models import ParamsMaker, small_bert

KINDS: tuple[HeadKind, ...] = (
    "feature-extraction",
    "text-classification",
    "token-classification",
    "question-answering",
)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("family", [name for name in FAMILIES if name not in {"longformer", "big_bird"}])
def test_a_task_head_leaves_the_encoders_hidden_states_unchanged(
    family: str, kind: HeadKind, params_of: ParamsMaker, ids: TokenIds, tmp_path: Path
) -> None:
    trained = models.build(params_of(family), "mlm", ids, seed=3).eval()
    trained.save(tmp_path)
    built = heads.build(tmp_path, kind, 0, {})
    input_ids_BL = torch.arange(5, 25).view(2, 10)
    with torch.inference_mode():
        before_BLH = trained.base_model(input_ids_BL).last_hidden_state
        after_BLH = built.base_model(input_ids_BL).last_hidden_state
    torch.testing.assert_close(after_BLH, before_BLH, rtol=0, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_an_encoder_that_lacks_a_weight_is_refused_by_its_name(
    kind: HeadKind, params_of: ParamsMaker, ids: TokenIds, tmp_path: Path
) -> None:
    models.build(params_of("bert"), "mlm", ids, seed=3).save(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    del weights["bert.encoder.layer.1.output.dense.weight"]
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ArtifactError, match="does not hold all weights") as caught:
        heads.build(tmp_path, kind, 0, {})
    assert "encoder.layer.1.output.dense.weight" in str(caught.value)


@pytest.mark.parametrize("family", ["bert", "roberta", "electra", "big_bird"])
def test_a_causal_encoder_whose_head_would_read_the_first_token_is_refused(
    family: str, params_of: ParamsMaker, ids: TokenIds, tmp_path: Path
) -> None:
    """That token sees no other, so every text would get the same label."""
    models.build(params_of(family), "clm", ids, seed=3).save(tmp_path)
    with pytest.raises(ArtifactError, match="causal") as caught:
        heads.build(tmp_path, "text-classification", 0, {})
    assert "family modernbert" in str(caught.value)
    heads.build(tmp_path, "feature-extraction", 0, {})


def test_a_causal_modernbert_classifies_at_its_last_token(
    params_of: ParamsMaker, ids: TokenIds, tmp_path: Path
) -> None:
    models.build(params_of("modernbert"), "clm", ids, seed=3).save(tmp_path)
    model = heads.build(tmp_path, "text-classification", 0, {"id2label": {0: "a", 1: "b"}})
    text, other = torch.tensor([[2, 10, 11, 12, 3]]), torch.tensor([[2, 10, 11, 20, 3]])
    with torch.inference_mode():
        assert not torch.equal(model(text).logits, model(other).logits)


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
        torch.testing.assert_close(classifier.logits(model, BATCH), logits_BC, rtol=0, atol=1e-5)


def test_every_matrix_of_the_layer_can_be_trained(save_trained) -> None:
    torch.manual_seed(0)
    model = classifier.build_classifier(save_trained(BertForMaskedLM(bert_of(1))), LABELS, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):  # some gradients start once another matrix is no longer 0
        optimizer.zero_grad()
        functional.cross_entropy(classifier.logits(model, BATCH), torch.tensor([0, 1])).backward()
        optimizer.step()
    matrices = [inner for inner in model.encoder.layers[-1].modules() if isinstance(inner, nn.Linear)]
    assert len(matrices) == 6
    assert all(inner.weight.grad is not None and inner.weight.grad.abs().max() > 0 for inner in matrices)


def test_a_mean_that_the_family_has_itself_needs_no_layer(small_encoder: Path) -> None:
    before = models.load(small_encoder).config.num_hidden_layers
    assert classifier.build_classifier(small_encoder, LABELS, 1).config.num_hidden_layers == before


@pytest.mark.parametrize("padding", [0.0, 9.0, -1e4])
def test_padding_is_left_out_of_the_mean(padding: float) -> None:
    hidden_BLH = torch.tensor([[[3.0, 0.0], [3.0, 8.0], [padding, padding]], [[0.0, 2.0], [0.0, 5.0], [0.0, 5.0]]])
    attention_mask_BL = torch.tensor([[1, 1, 0], [1, 1, 1]])
    expected_BH = torch.tensor([[0.6, 0.8], [0.0, 1.0]])
    torch.testing.assert_close(mean_of_tokens(hidden_BLH, attention_mask_BL), expected_BH)


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
        together = classifier.logits(model, batch(slice(0, 2)))
        second = classifier.logits(model, batch(slice(1, 2), length=3, masked=False))
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
        together = classifier.logits(model, batch(slice(0, 2)))
        first = classifier.logits(model, batch(slice(0, 1), masked=False))
        second = classifier.logits(model, batch(slice(1, 2), length=3, masked=False))
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
        ours = classifier.logits(model, EncodedBatch(inputs["input_ids"], None))
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
