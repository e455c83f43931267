"""Claim: every weight of every family has a depth; low layers can be frozen at no cost; rates fall towards them."""

from pathlib import Path

import pytest
import torch

from clozeline.encoder.families import FAMILIES
from clozeline.language import models
from clozeline.system.errors import ParamsError
from clozeline.tasks import adapters
from clozeline.tasks import heads as classifier

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
