import pytest
import torch
from torch import nn

from clozeline.encoder.families import FAMILIES
from clozeline.language import models
from clozeline.system.errors import ParamsError

ROW = [2, 10, 11, 12, 13, 14, 3]
SKIPPABLE = [(name, objective) for name, row in FAMILIES.items() if row.is_pre_norm for objective in row.forms]


@pytest.mark.parametrize("family", FAMILIES)
def test_dropout_rates_reach_the_modules_and_are_off_by_default(family, params_of, ids) -> None:
    rates = {
        (dropout, attention_dropout): {
            module.p
            for name, module in models.build(
                params_of(family, dropout=dropout, attention_dropout=attention_dropout), "mlm", ids, seed=0
            ).named_modules()
            if isinstance(module, nn.Dropout)
        }
        for dropout, attention_dropout in ((0.0, 0.0), (0.3, 0.0))
    }
    assert rates[0.0, 0.0] <= {0.0}
    assert 0.3 in rates[0.3, 0.0]


@pytest.mark.parametrize("knob", ["dropout", "attention_dropout", "head_dropout"])
@pytest.mark.parametrize("family", FAMILIES)
def test_each_dropout_acts_only_in_training(family, knob, params_of, ids, batch_of) -> None:
    batch = batch_of(ROW, [2, 33, 40, 3])
    plain = models.build(params_of(family), "mlm", ids, seed=0)
    model = models.build(params_of(family, **{knob: 0.5}), "mlm", ids, seed=0)
    with torch.inference_mode():
        expected_TV = models.target_logits(plain.eval(), batch)
        assert torch.equal(models.target_logits(model.eval(), batch), expected_TV)
        model.train()
        torch.manual_seed(0)
        one_TV, other_TV = (models.target_logits(model, batch) for _ in range(2))
        torch.manual_seed(0)
        again_TV = models.target_logits(model, batch)
    assert not torch.equal(one_TV, other_TV)
    assert torch.equal(one_TV, again_TV)


@pytest.mark.parametrize("objective", ["mlm", "clm"])
@pytest.mark.parametrize("family", ["modernbert", "bert"])
@torch.no_grad()
def test_attention_with_tiny_dropout_gives_the_logits_without_dropout(
    family, objective, params_of, ids, batch_of
) -> None:
    """On a CPU, attention that drops weights runs different code. Here it drops one in 65,536; with this seed, none."""
    model = models.build(params_of(family, attention_dropout=2**-16), objective, ids, seed=0).double()
    torch.manual_seed(0)
    for parameter in model.parameters():
        parameter += 0.3 * torch.randn_like(parameter)  # at the start, attention is too even for its mask to show
    for batch in (batch_of(ROW), batch_of(ROW, [2, *range(30, 40), 3])):
        without_TV = models.target_logits(model.eval(), batch)
        with_TV = models.target_logits(model.train(), batch)
        assert not torch.equal(with_TV, without_TV), "it is the other code"
        assert (with_TV - without_TV).abs().max() <= 1e-3 * without_TV.abs().max()


@pytest.mark.parametrize(("family", "objective"), SKIPPABLE)
@torch.inference_mode()
def test_stochastic_depth_skips_layers_of_single_rows_and_keeps_the_mean(family, objective, params_of, ids) -> None:
    """With two layers at rate 0.5, half of the rows skip the last layer, and a quarter skip the first."""
    model = models.build(params_of(family, stochastic_depth=0.5), objective, ids, seed=0).train()
    layer = model.encoder.layers
    seen: dict[int, torch.Tensor] = {}
    for number in (0, 1):
        layer[number].register_forward_hook(
            lambda module, inputs, output, number=number: seen.__setitem__(number, output - inputs[0])
        )
    torch.manual_seed(0)
    rows_BL = torch.tensor([ROW]).expand(4000, -1)
    model.base_model(rows_BL)
    skipped = {number: (added_BLH == 0).all(dim=(1, 2)) for number, added_BLH in seen.items()}
    assert skipped[0].float().mean().item() == pytest.approx(0.25, abs=0.03)
    assert skipped[1].float().mean().item() == pytest.approx(0.5, abs=0.03)
    together = (skipped[0] & skipped[1]).float().mean().item()
    assert together == pytest.approx(0.125, abs=0.02), "layers are skipped apart from each other"
    expected_LH = added_by_first_layer(family, objective, params_of, ids)
    assert (seen[0].mean(dim=0) - expected_LH).abs().max() <= 0.05 * expected_LH.abs().max()


def added_by_first_layer(family, objective, params_of, ids) -> torch.Tensor:
    model = models.build(params_of(family), objective, ids, seed=0).eval()
    added: list[torch.Tensor] = []
    model.encoder.layers[0].register_forward_hook(lambda module, inputs, output: added.append(output - inputs[0]))
    model.base_model(torch.tensor([ROW]))
    return added[0][0]


@pytest.mark.parametrize(("family", "objective"), SKIPPABLE)
@torch.inference_mode()
def test_stochastic_depth_changes_neither_weights_nor_inference(family, objective, params_of, ids, batch_of) -> None:
    plain = models.build(params_of(family), objective, ids, seed=0).eval()
    model = models.build(params_of(family, stochastic_depth=0.5), objective, ids, seed=0).eval()
    batch = batch_of(ROW)
    assert torch.equal(models.target_logits(model, batch), models.target_logits(plain, batch))
    assert model.state_dict().keys() == plain.state_dict().keys()
    assert model.config.to_dict() == plain.config.to_dict()


def test_stochastic_depth_is_the_same_under_gradient_checkpointing(params_of, ids, batch_of) -> None:
    gradients = []
    for checkpointing in (False, True):
        model = models.build(params_of("modernbert", stochastic_depth=0.5), "mlm", ids, seed=0).train()
        if checkpointing:
            model.gradient_checkpointing_enable()
        torch.manual_seed(5)
        models.target_logits(model, batch_of(ROW, [2, 33, 40, 3], [2, 9, 3])).logsumexp(dim=1).sum().backward()
        gradients.append(torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]))
    assert (gradients[0] - gradients[1]).abs().max() <= 1e-6


@pytest.mark.parametrize("family", [name for name, row in FAMILIES.items() if not row.is_pre_norm])
def test_stochastic_depth_is_refused_for_post_norm_families(family, params_of, ids) -> None:
    with pytest.raises(ParamsError, match=r"(?s)stochastic_depth.*modernbert"):
        models.build(params_of(family, stochastic_depth=0.1), "mlm", ids, seed=0)
