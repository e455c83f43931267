"""Claim: every weight of every family has a depth; low layers can be frozen at no cost; rates fall towards them."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from transformers import AutoModelForSequenceClassification

from clozeline.encoder.families import FAMILIES
from clozeline.params.tasks import LoraParams
from clozeline.system.errors import ParamsError
from clozeline.tasks import adapters, heads
from clozeline.tasks.heads import TaskModel

STOCK = ("deberta-v2", "deberta-v3", "longformer", "big_bird")
LORA = LoraParams(rank=2, alpha=4, dropout=0.0)
ROWS = torch.tensor([[2, 10, 11, 3], [2, 12, 10, 3]])
# A row with tokens that no training row has, among tokens that the training rows have.
UNSEEN = torch.tensor([[2, 40, 10, 50, 3]])
TRAINED = [2, 3, 10, 11, 12]
EncoderOf = Callable[..., Path]


def built(folder: Path) -> TaskModel:
    return heads.build_classifier(folder, ("x", "y"), 1)


def table_of(model: TaskModel) -> torch.Tensor:
    return model.get_input_embeddings().weight.detach()


def logits(model: TaskModel, rows: torch.Tensor = ROWS) -> torch.Tensor:
    with torch.inference_mode():
        return model.eval()(rows).logits


def train(model: TaskModel, weight_decay: float = 0.0) -> None:
    """Train `model` for three steps, without randomness."""
    trained = [parameter for parameter in model.eval().parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-2, weight_decay=weight_decay)
    for _ in range(3):
        cross_entropy(model(ROWS).logits, torch.tensor([0, 1])).backward()
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.parametrize("family", FAMILIES)
def test_every_weight_gets_its_layer_depth_from_its_name(family: str, encoder_of: EncoderOf) -> None:
    model = built(encoder_of(family))
    num_layers, depths = len(adapters.layers_of(model)), adapters.depth_of_each(model)
    assert num_layers == (1 if family == "albert" else model.config.num_hidden_layers)
    for name, parameter in model.named_parameters():
        place = next((int(part) for part in name.split(".") if part.isdigit()), -1)
        if "embedding" in name:
            expected = 0
        elif ".layer." in name or ".layers." in name or "albert_layer_groups" in name:
            expected = place + 1
        else:
            expected = num_layers + 1
        assert depths[id(parameter)] == expected, name
    adapters.freeze(model, num_layers)
    head = "stock.classifier." if family in STOCK else "head."
    assert all(parameter.requires_grad for name, parameter in model.named_parameters() if name.startswith(head))


def test_frozen_layers_get_no_gradient_and_layerwise_decay_multiplies_the_learning_rate(small_encoder: Path) -> None:
    model = built(small_encoder)
    rate_of = adapters.rate_by_depth(model, 0.5)
    rates = {name: rate_of(parameter) for name, parameter in model.named_parameters()}
    assert rates["head.output.weight"] == rates["encoder.final_norm.weight"] == 1
    layers = [rates[f"encoder.layers.{place}.mlp.input.weight"] for place in (1, 0)]
    assert [*layers, rates["encoder.embeddings.tokens.weight"]] == [0.5, 0.25, 0.125]
    with pytest.raises(ParamsError, match=r"`frozen_layers: 3`.*2 layers"):
        adapters.freeze(model, 3)
    adapters.freeze(model, 1)
    model(ROWS).logits.sum().backward()
    trained = {name for name, parameter in model.named_parameters() if parameter.grad is not None}
    assert not any("embeddings" in name or "layers.0." in name for name in trained)
    assert {"encoder.layers.1.mlp.input.weight", "head.output.weight"} <= trained


@pytest.mark.parametrize("family", ["modernbert", "bert", "distilbert", "deberta-v2", "albert"])
def test_a_merged_model_has_no_adapters_and_gives_the_same_answers(
    family: str, encoder_of: EncoderOf, tmp_path: Path
) -> None:
    """New adapters change no answer."""
    folder = encoder_of(family)
    model, plain = built(folder), built(folder)
    adapters.merge(plain)  # it has none, and stays as it is
    adapters.add(model, LORA, 1)
    torch.testing.assert_close(logits(model), logits(plain), rtol=0, atol=0)
    train(model)
    adapted = logits(model)
    assert not torch.allclose(adapted, logits(plain), atol=1e-4)
    adapters.merge(model)
    assert list(model.state_dict()) == list(plain.state_dict())
    torch.testing.assert_close(logits(model), adapted, rtol=1e-5, atol=1e-5)
    heads.save(model, folder, 16, tmp_path / "out")
    stock = AutoModelForSequenceClassification.from_pretrained(tmp_path / "out")
    torch.testing.assert_close(logits(stock), adapted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_a_narrow_table_trains_and_resumes_like_the_whole_one(family: str, encoder_of: EncoderOf) -> None:
    """A checkpoint holds only the rows; the token ids restore their positions."""
    folder = encoder_of(family)
    whole, narrowed, resumed, decayed = (built(folder) for _ in range(4))
    for model in (narrowed, resumed, decayed):
        adapters.narrow(model, ROWS.numpy())
    assert len(table_of(narrowed)) == len(TRAINED)
    train(whole)
    train(narrowed)
    resumed.load_state_dict(narrowed.state_dict())
    torch.testing.assert_close(logits(narrowed, UNSEEN), logits(whole, UNSEEN), atol=1e-6, rtol=0)
    for model in (narrowed, resumed):
        adapters.widen(model)
    assert torch.equal(table_of(resumed), table_of(narrowed))
    assert type(narrowed.get_input_embeddings()) is nn.Embedding
    assert narrowed.get_input_embeddings().padding_idx == whole.get_input_embeddings().padding_idx
    assert narrowed.state_dict().keys() == whole.state_dict().keys()
    for name, weight in whole.state_dict().items():
        torch.testing.assert_close(narrowed.state_dict()[name], weight, atol=1e-6, rtol=0, msg=name)
    train(decayed, weight_decay=0.1)
    adapters.widen(decayed)
    has_changed = (table_of(decayed) != table_of(built(folder))).any(dim=1)
    assert has_changed.nonzero().flatten().tolist() == TRAINED, "no other vector decays"


@pytest.mark.parametrize("reason", ["frozen", "shared", "no tokens", "most of the vocabulary"])
def test_a_table_stays_whole_if_narrowing_it_would_be_wrong_or_of_no_use(reason: str, small_encoder: Path) -> None:
    model = built(small_encoder)
    assert len(table_of(model)) == 90
    if reason == "frozen":
        adapters.freeze(model, 1)
    if reason == "shared":
        model.second = nn.Linear(*reversed(table_of(model).shape), bias=False)
        model.second.weight = model.get_input_embeddings().weight
    tokens = {"no tokens": np.empty((0, 4), dtype=np.int64), "most of the vocabulary": np.arange(46)[None]}
    adapters.narrow(model, tokens.get(reason, ROWS.numpy()))
    assert type(model.get_input_embeddings()) is nn.Embedding
