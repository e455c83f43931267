"""Claim: every weight of every family has a depth; low layers can be frozen at no cost; rates fall towards them."""

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from transformers import AutoModelForSequenceClassification

from clozeline.encoder.families import FAMILIES
from clozeline.language import models
from clozeline.params.tasks import LoraParams
from clozeline.system.errors import ParamsError
from clozeline.tasks import adapters, heads
from clozeline.tasks import heads as classifier
from clozeline.tasks.adapters import NarrowEmbedding, narrow, widen
from clozeline.tasks.heads import TaskModel

LABELS = ("x", "y")
STOCK = ("deberta-v2", "deberta-v3", "longformer", "big_bird")


@pytest.mark.parametrize("family", FAMILIES)
def test_every_weight_gets_its_layer_depth_from_its_name(
    family, params_of, ids, tiny_tokenizer, tmp_path: Path
) -> None:
    (tmp_path / "encoder").mkdir()
    encoder = models.build(params_of(family), "mlm", ids, seed=0)
    models.save(encoder, tiny_tokenizer, tmp_path / "encoder")
    model = classifier.build_classifier(tmp_path / "encoder", LABELS, 1)
    num_layers = len(adapters.layers_of(model))
    assert num_layers == (1 if family == "albert" else model.config.num_hidden_layers)
    for name, parameter in model.named_parameters():
        depth = adapters.depth_of_each(model)[id(parameter)]
        if "embedding" in name:
            assert depth == 0, name
        elif ".layer." in name or ".layers." in name or "albert_layer_groups" in name:
            place = next(int(part) for part in name.split(".") if part.isdigit())
            assert depth == place + 1, name
        else:
            assert depth == num_layers + 1, name
    adapters.freeze(model, num_layers)
    head = "stock.classifier." if family in STOCK else "head."
    assert all(parameter.requires_grad for name, parameter in model.named_parameters() if name.startswith(head))


def test_frozen_layers_are_left_out_of_the_backward_pass(small_encoder: Path) -> None:
    model = classifier.build_classifier(small_encoder, LABELS, 1)
    adapters.freeze(model, 1)
    was_asked_back = {}
    for place, layer in enumerate(adapters.layers_of(model)):
        layer.register_forward_hook(lambda _, __, out, place=place: was_asked_back.update({place: out.requires_grad}))
    model(torch.tensor([[2, 10, 11, 3]])).logits.sum().backward()
    assert was_asked_back == {0: False, 1: True}
    trained = {name for name, parameter in model.named_parameters() if parameter.grad is not None}
    assert not any("embeddings" in name or "layers.0." in name for name in trained)
    assert any("layers.1." in name for name in trained)
    assert "head.output.weight" in trained


def test_freezing_more_layers_than_exist_is_refused(small_encoder: Path) -> None:
    model = classifier.build_classifier(small_encoder, LABELS, 1)
    with pytest.raises(ParamsError, match=r"`frozen_layers: 3`.*2 layers"):
        adapters.freeze(model, 3)


def test_layerwise_decay_multiplies_the_learning_rate_per_layer(small_encoder: Path) -> None:
    model = classifier.build_classifier(small_encoder, LABELS, 1)
    rate_of = adapters.rate_by_depth(model, 0.5)
    rates = {name: rate_of(parameter) for name, parameter in model.named_parameters()}
    assert rates["head.output.weight"] == rates["encoder.final_norm.weight"] == 1
    assert rates["encoder.layers.1.mlp.input.weight"] == 0.5
    assert rates["encoder.layers.0.mlp.input.weight"] == 0.25
    assert rates["encoder.embeddings.tokens.weight"] == 0.125


LORA = LoraParams(rank=2, alpha=4, dropout=0.0)
INPUT_IDS_BL = torch.tensor([[2, 10, 11, 3]])


def logits(model) -> torch.Tensor:
    with torch.inference_mode():
        return model.eval()(INPUT_IDS_BL).logits


def step(model) -> None:
    optimizer = torch.optim.SGD([parameter for parameter in model.parameters() if parameter.requires_grad], lr=1.0)
    for _ in range(3):  # the second factor starts at zero, so the first one gets no gradient in the first step
        model(INPUT_IDS_BL).logits[:, 0].sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def test_new_adapters_change_no_answer_and_depend_on_the_seed(small_encoder: Path) -> None:
    before = torch.get_rng_state()
    plain, one, same, other = (classifier.build_classifier(small_encoder, LABELS, 1) for _ in range(4))
    for model, seed in ((one, 1), (same, 1), (other, 2)):
        adapters.add(model, LORA, seed)
    torch.testing.assert_close(logits(one), logits(plain), rtol=0, atol=0)
    drawn = [dict(model.named_parameters()) for model in (one, same, other)]
    name = next(name for name in drawn[0] if "lora_A" in name)
    assert torch.equal(drawn[0][name], drawn[1][name])
    assert not torch.equal(drawn[0][name], drawn[2][name])
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("family", ["modernbert", "bert", "distilbert", "deberta-v2", "albert"])
def test_a_merged_model_has_no_adapters_and_gives_the_same_answers(
    family, params_of, ids, tiny_tokenizer, tmp_path: Path
) -> None:
    (tmp_path / "encoder").mkdir()
    encoder = models.build(params_of(family), "mlm", ids, seed=0)
    models.save(encoder, tiny_tokenizer, tmp_path / "encoder")
    model, plain = (classifier.build_classifier(tmp_path / "encoder", LABELS, 1) for _ in range(2))
    adapters.add(model, LORA, 1)
    step(model)
    adapted = logits(model)
    assert not torch.allclose(adapted, logits(plain), atol=1e-4)
    adapters.merge(model)
    assert list(model.state_dict()) == list(plain.state_dict())
    torch.testing.assert_close(logits(model), adapted, rtol=1e-5, atol=1e-5)
    heads.save(model, tmp_path / "encoder", 16, tmp_path / "out")
    stock = AutoModelForSequenceClassification.from_pretrained(tmp_path / "out")
    torch.testing.assert_close(logits(stock), adapted, rtol=1e-5, atol=1e-5)


def test_only_adapters_and_head_are_trained(small_encoder: Path) -> None:
    model = classifier.build_classifier(small_encoder, LABELS, 1)
    adapters.add(model, LORA, 1)
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert {name for name in trained if "lora_" not in name} == {
        name for name, _ in model.named_parameters() if not name.startswith("encoder.")
    }
    assert sum("lora_A" in name for name in trained) == 2 * 4, "four matrices in each of two layers"


def test_a_model_without_adapters_stays_unchanged_and_needs_no_peft(
    small_encoder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "peft", None)
    monkeypatch.setitem(sys.modules, "peft.tuners.tuners_utils", None)
    model = classifier.build_classifier(small_encoder, LABELS, 1)
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    adapters.merge(model)
    assert all(torch.equal(weight, before[name]) for name, weight in model.state_dict().items())


ROWS = torch.tensor([[2, 10, 11, 3], [2, 12, 10, 3]])
UNSEEN = torch.tensor([[2, 40, 10, 50, 3]])
"""A row with tokens that no training row has, among tokens that the training rows have."""
TRAINED = [2, 3, 10, 11, 12]

Built = Callable[[], TaskModel]


@pytest.fixture(params=sorted(FAMILIES))
def built(request, params_of, ids, tiny_tokenizer, tmp_path: Path) -> Built:
    """Function that returns the same classifier at each call."""
    encoder = models.build(params_of(request.param), "mlm", ids, seed=0)
    models.save(encoder, tiny_tokenizer, tmp_path)
    return lambda: classifier.build_classifier(tmp_path, LABELS, 1)


def train(model: TaskModel, weight_decay: float = 0.0) -> None:
    """Train `model` for three steps, without randomness."""
    model.eval()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=weight_decay)
    for _ in range(3):
        cross_entropy(model(ROWS).logits, torch.tensor([0, 1])).backward()
        optimizer.step()
        optimizer.zero_grad()


def table_of(model: TaskModel) -> torch.Tensor:
    return model.get_input_embeddings().weight.detach()


def test_training_with_a_narrow_table_gives_the_same_weights(built: Built) -> None:
    whole, narrowed = built(), built()
    narrow(narrowed, ROWS.numpy())
    assert isinstance(narrowed.get_input_embeddings(), NarrowEmbedding)
    assert table_of(narrowed).shape[0] == len(TRAINED)
    train(whole)
    train(narrowed)
    with torch.no_grad():
        assert torch.allclose(narrowed(UNSEEN).logits, whole(UNSEEN).logits, atol=1e-6)
    widen(narrowed)
    assert type(narrowed.get_input_embeddings()) is nn.Embedding
    assert narrowed.get_input_embeddings().padding_idx == whole.get_input_embeddings().padding_idx
    assert narrowed.state_dict().keys() == whole.state_dict().keys()
    for name, weight in whole.state_dict().items():
        torch.testing.assert_close(narrowed.state_dict()[name], weight, atol=1e-6, rtol=0, msg=name)


def test_words_absent_from_all_texts_keep_their_vectors_despite_weight_decay(built: Built) -> None:
    model = built()
    before = table_of(model).clone()
    narrow(model, ROWS.numpy())
    train(model, weight_decay=0.1)
    widen(model)
    has_changed = (table_of(model) != before).any(dim=1)
    assert has_changed.nonzero().flatten().tolist() == TRAINED


def test_a_checkpoint_of_a_narrow_embedding_is_restored(built: Built) -> None:
    """A checkpoint holds only the rows; the token ids restore their positions."""
    first, again = built(), built()
    for model in (first, again):
        narrow(model, ROWS.numpy())
    train(first)
    again.load_state_dict(first.state_dict())
    for model in (first, again):
        widen(model)
    assert torch.equal(table_of(first), table_of(again))


def frozen(model: TaskModel) -> None:
    adapters.freeze(model, 1)


def tied(model: TaskModel) -> None:
    model.second = nn.Linear(*reversed(table_of(model).shape), bias=False)
    model.second.weight = model.get_input_embeddings().weight


@pytest.mark.parametrize("made", [frozen, tied])
@pytest.mark.parametrize("built", ["bert"], indirect=True)
def test_a_frozen_or_shared_embedding_stays_whole(made: Callable[[TaskModel], None], built: Built) -> None:
    model = built()
    made(model)
    narrow(model, ROWS.numpy())
    assert type(model.get_input_embeddings()) is nn.Embedding


@pytest.mark.parametrize("tokens", [np.empty((0, 4), dtype=np.int64), np.arange(33)[None]])
@pytest.mark.parametrize("built", ["bert"], indirect=True)
def test_the_table_stays_whole_for_no_tokens_or_most_of_the_vocabulary(tokens: np.ndarray, built: Built) -> None:
    model = built()
    assert table_of(model).shape[0] == 64
    narrow(model, tokens)
    assert type(model.get_input_embeddings()) is nn.Embedding
    widen(model)
    assert type(model.get_input_embeddings()) is nn.Embedding
