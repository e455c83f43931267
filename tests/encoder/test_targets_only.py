"""Claim: the last layer at the targets alone gives the numbers of the whole layer, forward and backward."""

from pathlib import Path
from typing import Any

import pytest
import torch

from clozeline.encoder import language_model, targets_only
from clozeline.encoder.families import TokenIds
from clozeline.encoder.objectives import TargetBatch
from clozeline.params import ModelParams, read_params

PROJECT = Path(__file__).parents[2]
VOCAB_SIZE = 64
IDS = TokenIds(VOCAB_SIZE, pad_id=0, cls_id=2, sep_id=3)
FAMILIES = ["modernbert", "bert", "roberta", "xlm-roberta"]


def params(family: str, **changes: object) -> ModelParams:
    shape = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 48}
    project = read_params(PROJECT / "params.yaml").pretrain.model
    return project.model_copy(
        update={"family": family, "size": None, "max_position_embeddings": 320, **shape, **changes}
    )


def build(family: str, **changes: object) -> Any:
    return language_model.build(params(family, **changes), "mlm", IDS, seed=0)


def batch(length: int, is_padded: bool, share: float = 0.2) -> TargetBatch:
    """Rows with different numbers of targets, one with none."""
    draw = torch.Generator().manual_seed(length)
    input_ids_BL = torch.randint(5, VOCAB_SIZE, (6, length), generator=draw)
    mask_BL = torch.ones_like(input_ids_BL)
    if is_padded:
        for row, cut in enumerate((0, 1, 5, 2, 9, 3)):
            input_ids_BL[row, length - cut :] = 0
            mask_BL[row, length - cut :] = 0
    is_target_BL = (torch.rand(6, length, generator=draw) < share) & mask_BL.bool()
    is_target_BL[3] = False
    slot_T = is_target_BL.reshape(-1).nonzero()[:, 0]
    labels_T = torch.randint(5, VOCAB_SIZE, (len(slot_T),), generator=draw)
    return TargetBatch(input_ids_BL, mask_BL if is_padded else None, slot_T, labels_T)


def gradients(model: Any, asked: TargetBatch) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Logits, and the gradient of every parameter."""
    model.zero_grad()
    logits_TV = language_model.target_logits(model, asked)
    torch.nn.functional.cross_entropy(logits_TV, asked.labels_T).backward()
    return logits_TV.detach(), {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("is_padded", [False, True])
@pytest.mark.parametrize("length", [20, 300])  # within local attention's reach, and beyond it
@pytest.mark.parametrize("family", FAMILIES)
def test_logits_and_gradients_are_those_of_the_whole_layer(
    family: str, length: int, is_padded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, asked = build(family).train(), batch(length, is_padded)
    assert targets_only.encode_targets(model, asked) is not None
    logits_TV, gradient = gradients(model, asked)
    monkeypatch.setattr(targets_only, "_ENCODERS", {})
    whole_logits_TV, whole_gradient = gradients(model, asked)
    assert (logits_TV - whole_logits_TV).abs().max() <= 1e-5
    assert gradient.keys() == whole_gradient.keys()
    for name, expected in whole_gradient.items():
        assert (gradient[name] - expected).abs().max() <= 1e-5, name


@pytest.mark.parametrize("family", FAMILIES)
def test_dropout_is_that_of_the_layer_in_training_and_none_else(family: str) -> None:
    model, asked = build(family, dropout=0.3, attention_dropout=0.3), batch(20, is_padded=False)
    with torch.no_grad():
        trained = [language_model.target_logits(model.train(), asked) for _ in range(2)]
        judged = [language_model.target_logits(model.eval(), asked) for _ in range(2)]
    assert not torch.equal(*trained)
    assert torch.equal(*judged)


def test_many_targets_take_the_whole_layer() -> None:
    assert targets_only.encode_targets(build("modernbert"), batch(20, is_padded=False, share=0.9)) is None


@pytest.mark.parametrize("knob", ["stochastic_depth", "head_dropout"])
def test_a_layer_that_is_listened_to_is_called_whole(knob: str) -> None:
    """Stochastic depth and head dropout want to see what the layer gives out."""
    assert targets_only.encode_targets(build("modernbert", **{knob: 0.1}), batch(20, is_padded=False)) is None
